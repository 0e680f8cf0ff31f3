"""A product's own web page: another origin than the service's, under a strict policy."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Product:
    """Serves what a test puts into `files`: path -> (media type, text)."""

    def __init__(self, service_url):
        self.files = {}
        self.policy = (
            f"default-src 'none'; script-src 'self' {service_url}; connect-src 'self' {service_url}; "
            "style-src 'self'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
        )
        product = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                media_type, text = product.files.get(self.path.split("?")[0], (None, ""))
                self.send_response(200 if media_type else 404)
                self.send_header("Content-Type", f"{media_type or 'text/plain'}; charset=utf-8")
                self.send_header("Content-Security-Policy", product.policy)
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write((text() if callable(text) else text).encode())

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self):
        self._server.shutdown()
        self._server.server_close()
