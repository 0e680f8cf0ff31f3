"""A way to Apportion on which questions and answers get lost, each as a seed says."""

import http.client
import random
import threading

from vendor import _Handler, _Server


class Flaky:
    def __init__(self, service, seed, share):
        flaky = self

        class Handler(_Handler):
            def do_POST(self):
                flaky.pass_on(self)

            do_GET = do_POST

        self.service, self.share, self.random, self.lost = service, share, random.Random(seed), 0
        self.server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def pass_on(self, call):
        body = call.rfile.read(int(call.headers.get("Content-Length") or 0))
        fate = self.random.random()
        if fate < self.share / 2:
            self.lost += 1
            return call.hang_up()
        connection = http.client.HTTPConnection("127.0.0.1", self.service.port, timeout=30)
        kept = {name: call.headers[name] for name in ("Authorization", "Content-Type")}
        connection.request(call.command, call.path, body or None, kept)
        told = connection.getresponse()
        text = told.read()
        connection.close()
        if fate < self.share:
            self.lost += 1
            return call.hang_up()
        call.send_response(told.status)
        for name in ("Content-Type", "Retry-After"):
            if told.headers[name]:
                call.send_header(name, told.headers[name])
        call.send_header("Content-Length", str(len(text)))
        call.end_headers()
        return call.wfile.write(text)
