"""Clients that mean no good, as a program of their own so that its work is not taken for the server's.

    python tests/python/hostile.py KIND PORT COUNT SECONDS

`documents` send documents of 16 MB; `greedy` ask for replies of 16 MB (of the collection hostile.large) and never read;
`drip` send one byte a second of a long message; `vanish` hang up in the middle of long messages, again and again; `reset` tear the connection down (RST) in the middle
of a request or of a reply, again and again; `squeeze` send 45 MB compressed to 200 KB; `silent` send half of a request, or read half of a reply, and are never heard of again;
`mixed` is a quarter of each of the first four.
"""

import os
import selectors
import socket
import struct
import sys
import time
import zlib

import bson

MEGABYTE = 1 << 20
DOCUMENT_BYTES = 16 * MEGABYTE - 1024


def message(body, payload=b""):
    """An OP_MSG; `payload` are documents of the sequence `documents`."""
    sections = b"\0" + bson.encode(body)
    if payload:
        sections += b"\1" + struct.pack("<i", 4 + len(b"documents\0") + len(payload)) + b"documents\0" + payload
    return struct.pack("<iiiiI", 20 + len(sections), 1, 0, 2013, 0) + sections


LARGE = message(
    {"insert": "stored", "$db": "hostile", "ordered": False}, bson.encode({"x": os.urandom(DOCUMENT_BYTES)})
)


def squeezed():
    """45 MB of documents in a message of 200 KB; the first of them is there already, so that none is inserted."""
    documents = b"".join(bson.encode({"_id": 0, "x": bytes(15 * MEGABYTE)}) for _ in range(3))
    whole = message({"insert": "large", "$db": "hostile"}, documents)
    content = struct.pack("<iiB", 2013, len(whole) - 16, 2) + zlib.compress(whole[16:], 1)
    return struct.pack("<iiii", 16 + len(content), 1, 0, 2012) + content


SQUEEZED = squeezed()
FIND = message({"find": "large", "$db": "hostile", "batchSize": 100_000})
LEAVING = ["reset", "silent"]


class Attacker:
    """One connection: sends, and reads or not, as its kind does."""

    def __init__(self, port, kind, number):
        self.port, self.kind, self.number = port, kind, number
        self.socket = None

    def connect(self):
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.connect_ex(("127.0.0.1", self.port))
        # Every second one is gone in the middle of a reply, the others in the middle of a request.
        self.asks = self.kind == "greedy" or self.kind in LEAVING and self.number % 2 == 0
        self.message = SQUEEZED if self.kind == "squeeze" else FIND if self.asks else LARGE
        self.rest = memoryview(self.message)
        self.read_bytes = 0
        if self.kind == "reset":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.due = time.monotonic()

    def close(self):
        self.socket.close()
        self.socket = None

    def is_leaving(self):
        """In the middle, which is not the same place for all."""
        gone = self.read_bytes if self.asks else len(LARGE) - len(self.rest)
        return self.kind in LEAVING and gone > (self.number % 15) * MEGABYTE

    def leave(self):
        if self.kind == "reset":
            self.close()

    def wants_to_write(self, now):
        return not self.is_leaving() and len(self.rest) > 0 and now >= self.due

    def write(self, now):
        piece = self.rest[: MEGABYTE // 4]
        if self.kind == "drip":
            # A few send a good part at once, and only then a byte now and then.
            begun = len(self.rest) < len(LARGE)
            piece = self.rest[:1] if begun or self.number % 8 else self.rest[: 2 * MEGABYTE]
            self.due = now + 1
        self.rest = self.rest[self.socket.send(piece) :]
        if self.is_leaving():
            self.leave()
        elif self.kind == "vanish" and len(self.rest) < (self.number % 16) * MEGABYTE + 1:
            self.close()

    def read(self):
        got = len(self.socket.recv(MEGABYTE // 4))
        self.read_bytes += got
        if not got:
            self.close()
        elif self.is_leaving():
            self.leave()
        elif not self.asks:
            self.rest = memoryview(self.message)


def attack(kind, port, count, seconds):
    kinds = ["documents", "greedy", "drip", "vanish"] if kind == "mixed" else [kind]
    attackers = [Attacker(port, kinds[i % len(kinds)], i // len(kinds)) for i in range(count)]
    end = time.monotonic() + seconds
    refused = 0
    while (now := time.monotonic()) < end:
        with selectors.DefaultSelector() as selector:
            for a in attackers:
                if a.socket is None:
                    a.connect()
                events = (selectors.EVENT_WRITE if a.wants_to_write(now) else 0) | (
                    selectors.EVENT_READ if a.kind != "greedy" and not a.is_leaving() else 0
                )
                if events:
                    selector.register(a.socket, events, a)
            for key, events in selector.select(0.2):
                a = key.data
                try:
                    if events & selectors.EVENT_WRITE:
                        a.write(now)
                    if a.socket and events & selectors.EVENT_READ:
                        a.read()
                except BlockingIOError:
                    pass
                except OSError:
                    # Given up by the server: a new connection does the same again.
                    refused += 1
                    a.close()
    print(f"{kind}: {refused} connections were closed by the server")


if __name__ == "__main__":
    attack(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
