"""What Monstache needs of Elasticsearch: an HTTP server that keeps documents by index and id.

Invariant: it keeps documents as they were written, and answers as a server of version 7 does. It searches nothing.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def handle_request(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.split("?")[0]
        if path == "/_bulk":
            self.answer({"took": 1, "errors": False, "items": self.server.bulk(body)})
        elif self.command == "DELETE":
            with self.server.lock:
                self.server.indexes.pop(path.strip("/"), None)
            self.answer({"acknowledged": True})
        else:
            self.answer({"name": "stand-in", "version": {"number": "7.17.0"}, "tagline": "You Know, for Search"})

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_request


class StandIn(ThreadingHTTPServer):
    """`with StandIn() as sink`: serves on a free loopback port. `documents(index)` gives the present
    documents."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.indexes = {}
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self.serve_forever, daemon=True)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.thread.join()
        self.server_close()

    def documents(self, index):
        with self.lock:
            return dict(self.indexes.get(index, {}))

    def bulk(self, body):
        lines = iter([json.loads(line) for line in body.splitlines() if line])
        items = []
        with self.lock:
            for line in lines:
                ((action, of),) = line.items()
                index = self.indexes.setdefault(of["_index"], {})
                if action == "delete":
                    index.pop(of["_id"], None)
                else:
                    index[of["_id"]] = next(lines)
                items.append({action: {"_index": of["_index"], "_id": of["_id"], "status": 200}})
        return items
