"""A client of the console: what a browser's page asks, and what an attacker may."""

import gzip
import http.client
import json
import socket
import ssl
import urllib.parse

from harness import free_port


class Console:
    """The console on `port`, as one browser that keeps its cookie."""

    def __init__(self, port, tls=None):
        self.port = port
        self.tls = tls
        self.cookie = None

    def ask(self, method, path, body=None, headers=None):
        """Status, headers and body, decoded."""
        if self.tls:
            link = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=self.tls)
        else:
            link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        given = {"Cookie": self.cookie} if self.cookie else {}
        if method == "POST":
            given |= {"Content-Type": "application/json", "X-Pando-Console": "1"}
        given |= headers or {}
        link.request(method, path, body=body, headers={k: v for k, v in given.items() if v is not None})
        reply = link.getresponse()
        data = reply.read()
        link.close()
        if reply.headers.get("Content-Encoding") == "gzip":
            data = gzip.decompress(data)
        return reply.status, reply.headers, data

    def get(self, path, **parameters):
        query = "?" + urllib.parse.urlencode(parameters) if parameters else ""
        status, _, data = self.ask("GET", "/api/1/" + path + query)
        return status, json.loads(data)

    def post(self, path, body=None, **headers):
        status, _, data = self.ask("POST", "/api/1/" + path, json.dumps(body or {}), headers)
        return status, json.loads(data)

    def log_in(self, user="", password="", source="admin"):
        body = json.dumps({"user": user, "password": password, "source": source})
        status, headers, data = self.ask("POST", "/api/1/login", body)
        self.set_cookie = headers.get("Set-Cookie")
        if status == 200:
            self.cookie = self.set_cookie.split(";")[0]
        return status

    def raw(self, data, timeout_s=30):
        """What comes back to bytes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s) as s:
            s.sendall(data)
            out = b""
            while part := s.recv(65536):
                out += part
            return out


def with_console(new_server, *options, **more):
    """A server with a console: both."""
    port = free_port()
    server = new_server("--console", str(port), *options, **more)
    return server, Console(port)


def trusting(path):
    """A TLS context that trusts the authority in the file."""
    return ssl.create_default_context(cafile=str(path))
