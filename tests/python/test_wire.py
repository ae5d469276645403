"""OP_MSG and OP_COMPRESSED whole, and what broken messages get."""

import pathlib
import random
import socket
import struct
import time
import zlib

import bson
import pytest

from harness import MORE_TO_COME, OP_COMPRESSED, OP_MSG, Wire, expect_error, until

MAX_DOCUMENT = 16 * 1024 * 1024
NAMESPACE = "wire"


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 & -(crc & 1))
    return crc ^ 0xFFFFFFFF


def document(*elements):
    """A document of raw elements, well framed."""
    body = b"".join(elements)
    return struct.pack("<i", len(body) + 5) + body + b"\0"


def string(name, value):
    return b"\x02" + name + b"\0" + struct.pack("<i", len(value) + 1) + value + b"\0"


DB = string(b"$db", b"admin")
PING = b"\x10ping\0\1\0\0\0"


def lives(wire):
    """The connection answers."""
    wire.ping()


def closed(wire):
    """The server closes the connection (and sends nothing that looks like an answer before)."""
    wire.socket.settimeout(10)
    try:
        while wire.socket.recv(65536):
            pass
    except ConnectionError:
        pass


def test_document_sequences(wire):
    documents = [bson.encode({"_id": i}) for i in range(1000)]
    reply = wire.command({"insert": "sequence", "$db": NAMESPACE}, sequences=[("documents", documents)])
    assert reply["ok"] == 1 and reply["n"] == 1000
    assert wire.command({"count": "sequence", "$db": NAMESPACE})["n"] == 1000
    wire.command({"drop": "sequence", "$db": NAMESPACE})


def test_sequence_before_the_body(wire):
    content = b"documents\0" + bson.encode({"_id": 1})
    sequence = b"\1" + struct.pack("<i", 4 + len(content)) + content
    body = b"\0" + bson.encode({"insert": "backwards", "$db": NAMESPACE})
    wire.send(wire.message(OP_MSG, struct.pack("<I", 0) + sequence + body))
    assert wire.receive_msg()["n"] == 1
    wire.command({"drop": "backwards", "$db": NAMESPACE})


def test_more_to_come_has_no_reply(wire):
    wire.command({"insert": "silent", "$db": NAMESPACE, "documents": [{"_id": 1}], "writeConcern": {"w": 0}}, MORE_TO_COME)
    # The next reply is the ping's, by its responseTo.
    wire.ping()
    assert wire.command({"count": "silent", "$db": NAMESPACE})["n"] == 1
    wire.command({"drop": "silent", "$db": NAMESPACE})


def test_more_to_come_is_silent_on_errors_too(wire):
    wire.command({"noSuchCommand": 1, "$db": NAMESPACE}, MORE_TO_COME)
    wire.ping()


def test_checksum(wire):
    payload = struct.pack("<I", 1) + b"\0" + bson.encode({"ping": 1, "$db": "admin"})
    wire.request_id += 1
    head = struct.pack("<iiii", 16 + len(payload) + 4, wire.request_id, 0, OP_MSG)
    wire.send(head + payload + struct.pack("<I", crc32c(head + payload)))
    assert wire.receive_msg()["ok"] == 1


def test_wrong_checksum(wire):
    payload = struct.pack("<I", 1) + b"\0" + bson.encode({"ping": 1, "$db": "admin"})
    wire.send(wire.message(OP_MSG, payload + b"\0\1\2\3"))
    try:
        assert wire.receive_msg()["ok"] == 0
    except (EOFError, ConnectionError):
        pass  # MongoDB closes the connection


def test_zlib_by_hand(wire):
    assert wire.command({"hello": 1, "compression": ["zlib"], "$db": "admin"})["compression"] == ["zlib"]
    plain = struct.pack("<I", 0) + b"\0" + bson.encode({"serverStatus": 1, "$db": "admin"})
    wire.send(wire.message(OP_COMPRESSED, struct.pack("<iiB", OP_MSG, len(plain), 2) + zlib.compress(plain)))
    op_code, _, payload = wire.receive()
    assert op_code == OP_COMPRESSED, "a compressed request has a compressed reply"
    original, size, compressor = struct.unpack_from("<iiB", payload)
    inner = zlib.decompress(payload[9:])
    assert original == OP_MSG and compressor == 2 and size == len(inner)
    assert bson.decode(inner[5:])["ok"] == 1


def test_compressed_garbage_closes_only_this_connection(server, wire):
    broken = server.wire()
    broken.command({"hello": 1, "compression": ["zlib"], "$db": "admin"})
    broken.send(broken.message(OP_COMPRESSED, struct.pack("<iiB", OP_MSG, 100, 2) + b"this is not zlib"))
    closed(broken)
    lives(wire)


def test_compressed_size_that_lies(server, wire):
    plain = struct.pack("<I", 0) + b"\0" + bson.encode({"ping": 1, "$db": "admin"})
    for size in (-1, 0, len(plain) - 1, len(plain) + 1, 0x7FFFFFFF):
        broken = server.wire()
        broken.send(broken.message(OP_COMPRESSED, struct.pack("<iiB", OP_MSG, size, 2) + zlib.compress(plain)))
        closed(broken)
    lives(wire)


@pytest.mark.parametrize("compressor", ["snappy", "zlib", "zstd"])
def test_drivers_compression(server, compressor):
    text = "all work and no play makes a dull document " * 200
    with server.client(compressors=compressor) as client:
        things = client[NAMESPACE][f"compressed_{compressor}"]
        things.insert_many({"_id": i, "text": text} for i in range(200))
        assert all(d["text"] == text for d in things.find())
        assert things.count_documents({}) == 200
        things.drop()


@pytest.mark.parametrize("length", [0, 1, 15, -1, -(2**31), 48_065_537, 2**31 - 1])
def test_a_bad_length_closes_the_connection(server, wire, length):
    broken = server.wire()
    broken.send(struct.pack("<iiii", length, 1, 0, OP_MSG) + b"\0" * 32)
    closed(broken)
    lives(wire)


def test_a_message_of_nothing_but_a_head(server, wire):
    broken = server.wire()
    broken.send(struct.pack("<iiii", 16, 1, 0, OP_MSG))
    with_answer = b""
    broken.socket.settimeout(10)
    try:
        with_answer = broken.socket.recv(65536)
    except ConnectionError:
        pass
    assert with_answer == b"" or struct.unpack_from("<i", with_answer)[0] == len(with_answer)
    lives(wire)


def test_unknown_opcodes(server, wire):
    for op_code in (0, 1, 2001, 2002, 2005, 2006, 2007, 9999, -1):
        broken = server.wire()
        broken.send(broken.message(op_code, b"\0" * 64))
        broken.socket.settimeout(0.2)
        try:
            broken.socket.recv(65536)
        except (TimeoutError, socket.timeout, ConnectionError):
            pass
        broken.close()
    lives(wire)


@pytest.mark.parametrize(
    "what, body",
    [
        ("a length that is too large", struct.pack("<i", 1000) + DB + b"\0"),
        ("a length that is too small", struct.pack("<i", 4) + DB + b"\0"),
        ("a negative length", struct.pack("<i", -1) + DB + b"\0"),
        ("no terminator", struct.pack("<i", len(DB) + 5) + DB + b"\1"),
    ],
)
def test_a_body_that_is_badly_framed(server, wire, what, body):
    broken = server.wire()
    broken.send_body(body)
    try:
        assert broken.receive_msg()["ok"] == 0
    except (EOFError, ConnectionError):
        pass  # nothing can be said about where the next message begins
    lives(wire)


@pytest.mark.parametrize(
    "what, element",
    [
        ("a string longer than the document", b"\x02s\0\xff\xff\0\0x\0"),
        ("a string of no length", b"\x02s\0\0\0\0\0"),
        ("a string of negative length", b"\x02s\0\xff\xff\xff\xffx\0"),
        ("a string without its end", b"\x02s\0\2\0\0\0xy"),
        ("an unknown type", b"\x20s\0\0\0\0\0"),
        ("a truncated number", b"\x12s\0\0\0"),
        ("a boolean that is neither", b"\x08s\0\2"),
        ("an inner document that is too long", b"\x03s\0\xff\0\0\0\0"),
        ("an inner document that is too short", b"\x03s\0\4\0\0\0\0"),
        ("binary of negative length", b"\x05s\0\xff\xff\xff\xff\0"),
        ("a name without an end", b"\x10abcdefgh"),
    ],
)
def test_malformed_bson_is_an_error_and_the_connection_lives(wire, what, element):
    reply = wire.raw_command(document(PING, DB, element))
    expect_error(reply, 22, "InvalidBSON")
    lives(wire)


@pytest.mark.parametrize("filler", [10, 1 << 20])
def test_malformed_bson_in_a_compressed_message(wire, filler):
    """A long one is decompressed, and validated, by a worker alone."""
    body = document(PING, DB, b"\x02f\0" + struct.pack("<i", filler + 1) + b"x" * filler + b"\0", b"\x20s\0\0\0\0\0")
    plain = struct.pack("<I", 0) + b"\0" + body
    wire.send(wire.message(OP_COMPRESSED, struct.pack("<iiB", OP_MSG, len(plain), 2) + zlib.compress(plain)))
    op_code, _, payload = wire.receive()
    reply = zlib.decompress(payload[9:]) if op_code == OP_COMPRESSED else payload
    expect_error(bson.decode(reply[5:]), 22, "InvalidBSON")
    lives(wire)


def test_a_batch_that_a_worker_takes_over(wire):
    """The loop has validated it, and finds that it is too large; another sequence of the same connection is not trusted."""
    docs = [bson.encode({"_id": i, "s": "text"}) for i in range(200)]
    assert wire.command({"insert": "taken", "$db": NAMESPACE}, sequences=[("documents", docs)])["n"] == 200
    bad = bytearray(docs[-1])
    bad[-8] = 200
    reply = wire.command({"insert": "taken", "$db": NAMESPACE}, sequences=[("documents", docs[:-1] + [bytes(bad)])])
    expect_error(reply, 22, "InvalidBSON")
    assert wire.command({"count": "taken", "$db": NAMESPACE})["n"] == 200


def test_malformed_document_in_a_sequence(wire):
    bad = bytearray(bson.encode({"_id": 1, "s": "text"}))
    bad[-8] = 200
    reply = wire.command({"insert": "bad", "$db": NAMESPACE}, sequences=[("documents", [bytes(bad)])])
    expect_error(reply, 22, "InvalidBSON")
    assert wire.command({"count": "bad", "$db": NAMESPACE})["n"] == 0


def nested(depth):
    value = b"\x10n\0\1\0\0\0"
    for _ in range(depth):
        value = b"\x03d\0" + document(value)
    return value


def test_nesting_past_the_limit(wire):
    def insert(depth):
        documents = b"\x04documents\0" + document(b"\x030\0" + document(nested(depth)))
        return wire.raw_command(document(string(b"insert", b"deep"), documents, string(b"$db", NAMESPACE.encode())))

    assert insert(179)["n"] == 1
    reply = insert(180)
    assert reply["n"] == 0 and reply["writeErrors"][0]["code"] == 15, "MongoDB stores 180 levels, the document itself counted"
    stored = wire.command({"validate": "deep", "$db": NAMESPACE})
    assert stored["valid"] and stored["nrecords"] == 1, stored
    value = 1
    for _ in range(181):
        value = {"d": value}
    for update in ({"$set": {"x": value}}, [{"$set": {"x": {"$literal": value}}}], {"x": value}, {"$set": {".".join("x" * 182): 1}}):
        reply = wire.command({"update": "deep", "$db": NAMESPACE, "updates": [{"q": {}, "u": update}]})
        assert reply["n"] == 0 and reply["writeErrors"][0]["code"] == 15, update
    reply = insert(500)
    assert reply.get("ok") == 0 and reply["code"] in (15, 22), reply
    lives(wire)
    reply = insert(100_000)
    assert reply.get("ok") == 0, reply
    lives(wire)
    wire.command({"drop": "deep", "$db": NAMESPACE})


def test_documents_of_16_mb(wire):
    def insert(size):
        filling = size - len(bson.encode({"_id": 1, "s": ""}))
        raw = bson.encode({"_id": 1, "s": "x" * filling})
        assert len(raw) == size
        return wire.command({"insert": "large", "$db": NAMESPACE}, sequences=[("documents", [raw])])

    reply = insert(MAX_DOCUMENT)
    assert reply["ok"] == 1 and reply["n"] == 1, reply
    assert wire.command({"find": "large", "$db": NAMESPACE})["cursor"]["firstBatch"][0]["_id"] == 1
    wire.command({"delete": "large", "$db": NAMESPACE, "deletes": [{"q": {}, "limit": 0}]})
    reply = insert(MAX_DOCUMENT + 1)
    error = reply["writeErrors"][0] if reply["ok"] else reply
    assert error["code"] in (2, 10334), reply
    assert wire.command({"count": "large", "$db": NAMESPACE})["n"] == 0
    wire.command({"drop": "large", "$db": NAMESPACE})


def test_growing_past_16_mb(wire):
    wire.command({"insert": "growing", "$db": NAMESPACE, "documents": [{"_id": 1, "s": "x" * (10 << 20)}]})
    reply = wire.command(
        {"update": "growing", "$db": NAMESPACE, "updates": [{"q": {}, "u": {"$set": {"t": "y" * (10 << 20)}}}]}
    )
    error = reply["writeErrors"][0] if reply["ok"] else reply
    assert error["code"] in (17419, 17420, 10334), reply
    assert "t" not in wire.command({"find": "growing", "$db": NAMESPACE})["cursor"]["firstBatch"][0]
    wire.command({"drop": "growing", "$db": NAMESPACE})


def test_invalid_utf8_is_refused_and_leaves_nothing(wire):
    documents = b"\x04documents\0" + document(b"\x030\0" + document(string(b"s", b"\xff\xfe")))
    reply = wire.raw_command(document(string(b"insert", b"utf8"), documents, string(b"$db", NAMESPACE.encode())))
    expect_error(reply, 22)
    assert wire.command({"count": "utf8", "$db": NAMESPACE})["n"] == 0
    lives(wire)


def test_invalid_utf8_in_names_of_namespaces(wire):
    reply = wire.raw_command(document(string(b"find", b"\xff\xfe"), string(b"$db", NAMESPACE.encode())))
    assert reply["ok"] in (0, 1)
    reply = wire.raw_command(document(string(b"find", b"x"), string(b"$db", b"\xff\xfe")))
    assert reply["ok"] in (0, 1)
    lives(wire)


def test_missing_db(wire):
    expect_error(wire.command({"ping": 1}), 40571)
    lives(wire)


def test_an_empty_body(wire):
    assert wire.command({"$db": "admin"})["ok"] == 0
    lives(wire)


def test_noise(server, wire):
    """Random bytes, and good messages with random damage, never end the server."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    good = bson.encode(
        {
            "aggregate": "noise",
            "$db": NAMESPACE,
            "cursor": {},
            "pipeline": [{"$match": {"a": {"$in": [1, "x", None, 2.5]}}}, {"$group": {"_id": "$a", "n": {"$sum": 1}}}],
        }
    )
    for round_number in range(300):
        broken = Wire(server.port, timeout_s=0.5)
        if round_number % 3 == 0:
            raw = rng.randbytes(rng.randrange(1, 200))
        else:
            body = bytearray(good)
            for _ in range(rng.randrange(1, 4)):
                body[rng.randrange(len(body))] = rng.randrange(256)
            raw = broken.message(OP_MSG, struct.pack("<I", 0) + b"\0" + bytes(body))
        try:
            broken.send(raw)
            broken.socket.shutdown(socket.SHUT_WR)
            while broken.socket.recv(65536):
                pass
        except OSError:
            pass
        broken.close()
    lives(wire)


def test_requests_sent_in_one_piece_are_answered_in_order(wire):
    raw = b""
    for i in range(1, 201):
        body = bson.encode({"ping": 1, "$db": "admin"})
        raw += struct.pack("<iiii", 16 + 5 + len(body), i, 0, OP_MSG) + struct.pack("<I", 0) + b"\0" + body
    wire.send(raw)
    for i in range(1, 201):
        op_code, response_to, _ = wire.receive()
        assert op_code == OP_MSG and response_to == i


def unread_bytes(server, wire):
    """What the server has not read yet of what was sent on a connection."""
    own = wire.socket.getsockname()[1]
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, *ends, _, queues = line.split()[:5]
        if [int(end.split(":")[1], 16) for end in ends] == [server.port, own]:
            return int(queues.split(":")[1], 16)


def test_a_message_sent_byte_by_byte(server, wire):
    raw = wire.message(OP_MSG, struct.pack("<I", 0) + b"\0" + bson.encode({"ping": 1, "$db": "admin"}))
    for i in range(len(raw)):
        wire.send(raw[i : i + 1])
        if i % 8 == 0:
            until("it is read", lambda: unread_bytes(server, wire) == 0)
    assert wire.receive_msg()["ok"] == 1


def test_exhaust_get_more(wire):
    wire.command(
        {"insert": "exhaust", "$db": NAMESPACE}, sequences=[("documents", [bson.encode({"_id": i}) for i in range(100)])]
    )
    cursor = wire.command({"find": "exhaust", "$db": NAMESPACE, "batchSize": 10})["cursor"]
    seen = [d["_id"] for d in cursor["firstBatch"]]
    wire.send_body(
        bson.encode({"getMore": bson.Int64(cursor["id"]), "collection": "exhaust", "batchSize": 10, "$db": NAMESPACE}),
        flags=1 << 16,
    )
    more = True
    while more:
        op_code, _, payload = wire.receive()
        (flags,) = struct.unpack_from("<I", payload)
        reply = bson.decode(payload[5:])
        seen += [d["_id"] for d in reply["cursor"]["nextBatch"]]
        more = bool(flags & MORE_TO_COME)
        if not more and reply["cursor"]["id"]:
            # A server may answer exhaust requests one at a time.
            reply = wire.send_body(
                bson.encode({"getMore": bson.Int64(reply["cursor"]["id"]), "collection": "exhaust", "$db": NAMESPACE}),
                flags=1 << 16,
            )
            more = True
    assert seen == list(range(100))
    wire.command({"drop": "exhaust", "$db": NAMESPACE})
