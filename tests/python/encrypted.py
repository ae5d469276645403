"""Servers that want TLS, and clients of theirs."""

import pymongo

from harness import Server, until


class Secure(Server):
    """A server that its own harness reaches without TLS only while plain text is allowed."""

    def start(self, timeout_s=60):
        self.launch()

        def waits():
            assert self.running(), self.tail()
            return "Waiting for connections" in self.tail(200)

        until("the server waits for connections", waits, timeout_s)
        return self


def tls_options(authority, mode="requireTLS", **more):
    given = {"tlsMode": mode, "tlsCertificateKeyFile": authority.issue("server", unit="Servers"), **more}
    return [o for name, value in given.items() for o in ([f"--{name}"] if value is True else [f"--{name}", value])]


def tls_client(server, authority, **more):
    more.setdefault("serverSelectionTimeoutMS", 2000)
    return pymongo.MongoClient(
        f"mongodb://localhost:{server.port}/", directConnection=True, tls=True, tlsCAFile=str(authority.file), **more
    )
