"""Prints the URL that it listens at, and for each request a line of JSON: its headers. Refuses what comes from another site, as protection
against forged requests does."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        print(json.dumps(dict(self.headers.items())), flush=True)
        origin = self.headers["Origin"]
        self.send_response(403 if origin and origin != "http://" + self.headers["Host"] else 204)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Handler)
print(f"http://127.0.0.1:{server.server_port}/", flush=True)
server.serve_forever()
