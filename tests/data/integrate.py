"""Runs the sample of docs/integrate.md against a running server and a stub vendor.

usage: APPORTION_URL=... TOKEN=... integrate.py docs/integrate.md
(TOKEN with check, quota and admin:write of a tenant of its own.)
"""

import http.server, json, os, re, sys, threading, time, urllib.error, urllib.request, uuid

REAL, TOKEN = os.environ["APPORTION_URL"], os.environ["TOKEN"]


def serve(handler):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}"


class Quiet(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def read(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def reply(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except BrokenPipeError:
            pass  # who was too slow for the caller is not heard


class Vendor(Quiet):
    """Answers with the status that the prompt names; hangs up or is slow on demand."""

    def do_POST(self):
        prompt = json.loads(self.read())["prompt"]
        if prompt == "hang up":
            return
        if prompt == "slow":
            time.sleep(2)
        status = int(prompt) if prompt.isdigit() else 200
        body = {"text": "hello", "input_tokens": 7, "output_tokens": 3}
        self.reply(status, json.dumps(body).encode())


class Flaky(Quiet):
    """Stands before the service; the first ends of a hold get no good answer."""

    faults = []
    seen = []

    def do_POST(self):
        body = self.read()
        if "/holds/" in self.path:
            self.seen.append(self.path)
            if self.faults:
                fault = self.faults.pop(0)
                if fault == "hang up":
                    return
                if fault == "html":
                    return self.reply(503, b"<html>busy</html>", "text/html")
                problem = {"code": "store_unavailable", "retry_after_ms": 20}
                return self.reply(503, json.dumps(problem).encode(), "application/problem+json")
        status, reply = call("POST", self.path, body)
        self.reply(status, reply)


def call(method, path, body=None):
    request = urllib.request.Request(REAL + path, method=method, data=body, headers={
        "Authorization": "Bearer " + TOKEN, "Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def main():
    sample = re.search(r"```python\n(.*?)```", open(sys.argv[1]).read(), re.S).group(1)
    _, os.environ["APPORTION_URL"] = serve(Flaky)
    vendor, vendor_url = serve(Vendor)
    names = {}
    exec(compile(sample, "integrate.md", "exec"), names)

    def ask(prompt, url=vendor_url):
        """The answer (or what was raised) and the hold as it is afterwards."""
        def call_vendor(prompt, _):
            data = json.dumps({"prompt": prompt}).encode()
            request = urllib.request.Request(url, method="POST", data=data)
            with urllib.request.urlopen(request, timeout=0.5) as reply:
                return json.load(reply)
        Flaky.seen.clear()
        user = uuid.uuid4().hex
        try:
            said = names["answer"](user, prompt, call_vendor, len)
        except Exception as error:
            said = error
        hold = Flaky.seen[-1].split("/")[3]
        status, body = call("GET", "/v1/holds/" + hold)
        assert status == 200, body
        return said, json.loads(body)["hold"]

    def expect(prompt, kind, state, reason=None, url=vendor_url):
        said, hold = ask(prompt, url)
        assert isinstance(said, kind), (prompt, said)
        assert (hold["state"], hold.get("reason")) == (state, reason), (prompt, hold)
        print(f"{prompt}: {type(said).__name__}, {state} {reason or ''}")

    expect("good", dict, "settled")
    for status in ["400", "429", "529"]:
        expect(status, urllib.error.HTTPError, "released", "upstream_refused")
    expect("500", urllib.error.HTTPError, "in_doubt")
    expect("hang up", ConnectionError, "in_doubt")
    expect("slow", TimeoutError, "in_doubt")
    Flaky.faults[:] = ["problem", "html", "hang up", "problem"]
    expect("good", dict, "settled")
    assert len(Flaky.seen) == 5, Flaky.seen
    Flaky.faults[:] = ["problem"]
    expect("429", urllib.error.HTTPError, "released", "upstream_refused")
    Flaky.faults[:] = ["problem"] * 5
    _, hold = ask("good")
    assert hold["state"] == "held", hold
    path, body = json.loads(open("unsent.jsonl").read())
    assert names["finish"](path, body)[1]["hold"]["state"] == "settled"
    vendor.shutdown()
    vendor.server_close()
    expect("nobody there", urllib.error.URLError, "released", "not_sent")
    expect("no such host", urllib.error.URLError, "released", "not_sent", "http://vendor.invalid")
    print("all as the page says")


main()
