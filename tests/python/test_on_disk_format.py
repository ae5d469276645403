"""docs/on-disk-format.md is what lies on the disk: a reader that knows its tables alone (`on_disk`) reads what a server wrote."""

import base64
import datetime
import hashlib
import json
import math
import os
import struct
import uuid

import bson
import pytest
import zstandard
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from harness import pando, until
from on_disk import (
    FRAME, KINDS, TEXT, Bytes, Layout, crc32c, derived, entries, entry, escaped, keyspace, mac, parted, section, tables,
)
from searches import indexed

# The first byte of a key by its type, as the page has it.
RANKS = {name: int(byte, 16) for types, byte, _ in tables("Keys")[0] for name in types.split(", ")}


def stopped(server):
    assert server.stop() == 0
    return server.path


def work(client):
    """Writes of every kind that an entry can have but those of sets and of moves."""
    db = client.t
    db.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    db.c.create_index([("a", 1), ("b", -1)])
    db.c.insert_many([{"_id": n, "a": n * 0.5, "b": str(n)} for n in range(3)])
    db.c.update_one({"_id": 1}, {"$set": {"b": "x"}})
    db.c.delete_one({"_id": 2})
    with client.start_session() as session, session.start_transaction():
        db.c.insert_one({"_id": "in a transaction"}, session=session)
        db.d.insert_one({"_id": 1}, session=session)
    db.create_collection("capped", capped=True, size=4096)
    db.capped.insert_many([{"_id": "second"}, {"_id": "first"}])
    db.random.insert_many([{"_id": Binary(uuid.uuid4().bytes, 4), "n": n} for n in range(3)])
    db.gone.insert_one({})
    db.gone.drop()


def test_the_log_and_the_keyspace(new_server):
    server = new_server("--log-retain", "64")
    with server.client() as client:
        work(client)
        there = {ns: list(client.t[ns].find()) for ns in ("c", "d", "capped", "random")}
    found = [e for _, e in entries(stopped(server))]
    kinds = {e["kind"] for e in found}
    assert {"insert", "update", "delete", "DDL", "transaction"} <= kinds <= {name for name, _ in KINDS.values()}
    update = next(e for e in found if e["kind"] == "update" and e["namespace"] == "t.c")
    assert update["image before"] == {"_id": 1, "a": 0.5, "b": "1"} and update["operation"][1] == key_of(1)
    assert [bson.decode(e["operation"][0]) for e in found if e["kind"] == "delete"] == [{"_id": 2}]
    assert "session" in update, "the driver retries writes"

    all_keys = keyspace(server.path)
    rows = tables("The keyspace")[0]
    drawn = {(int(space), None if number == "index" else int(number)) for space, number, _, _ in rows}
    for tablet, space, number, _ in map(parted, all_keys):
        assert (space, None if space == 2 else number) in drawn, (tablet, space, number)
    catalog = {bson.decode(v)["ns"]: bson.decode(v) for k, v in all_keys.items() if parted(k)[:3] == (0, 0, 1)}
    check_catalog(catalog, all_keys)
    for ns, documents in there.items():
        check_collection(catalog[f"t.{ns}"], all_keys, documents)
    [next_tablet] = [bson.decode(v)["nextTablet"] for k, v in all_keys.items() if parted(k)[:3] == (0, 0, 2)]
    assert next_tablet > max(record["tablet"] for record in catalog.values())
    puts = [effect[1:] for e in found for effect in e["effects"] if effect[0] == "put"]
    sessions = [bson.decode(value) for key, value in puts if parted(key)[:3] == (0, 3, 0)]
    assert sessions and all(set(s) <= {"txn", "date", "done", "state"} for s in sessions)
    assert any(s.get("state") == "committed" for s in sessions)


def check_catalog(catalog, all_keys):
    fields = {row[0] for row in tables("Catalog record")[0]}
    assert "t.gone" not in catalog
    for ns, record in catalog.items():
        assert set(record) <= fields and fields - set(record) <= {"search"}, ns
        assert {"id", "spec", "multikey", "building", "since"} == set().union(*record["indexes"]) or not record["indexes"]
        assert any(parted(k)[:3] == (0, 0, 1) and parted(k)[3] == bytes(record["uuid"]) for k in all_keys)


def check_collection(record, all_keys, documents):
    """Records lie under the key of `_id`, or under numbers to which space 4 leads; index entries end with the record key."""
    own = {k: v for k, v in all_keys.items() if parted(k)[0] == record["tablet"]}
    records = {parted(k)[3]: bson.decode(v) for k, v in own.items() if parted(k)[1] == 1}
    ids = {parted(k)[3]: v for k, v in own.items() if parted(k)[1] == 4}
    assert sorted(map(str, records.values())) == sorted(map(str, documents))
    assert bool(ids) == record["numbered"]
    for key, document in records.items():
        if record["numbered"]:
            assert ids[key_of(document["_id"])] == key and len(key) == 8
        else:
            assert key == key_of(document["_id"])
        for index in record["indexes"]:
            values = [(document.get(name), direction < 0) for name, direction in index["spec"]["key"].items()]
            wanted = b"".join(key_of(value, descending) for value, descending in values) + key
            assert any(parted(k)[1:] == (2, index["id"], wanted) for k in own), (document, index)


def sortable(value):
    bits = struct.unpack(">Q", struct.pack(">d", value + 0.0))[0]
    return struct.pack(">Q", bits ^ (2**64 - 1) if bits >> 63 else bits | 1 << 63)


def key_of(value, descending=False):
    """The key of a value as the page says it, for what is no container and no number between two doubles."""
    def of(name, rest=b""):
        return bytes([RANKS[name]]) + rest

    match value:
        case None:
            key = of("null")
        case bool():
            key = of("bool", bytes([value]))
        case int() | float():
            key = of("numbers", sortable(float(value)) + b"\0")
        case Code():
            key = of("code", value.encode() + b"\0")
        case str():
            key = of("string", value.encode().replace(b"\1", b"\1\2").replace(b"\0", b"\1\1") + b"\0")
        case ObjectId():
            key = of("ObjectId", value.binary)
        case uuid.UUID():
            key = of("binary", struct.pack(">IB", 16, 4) + value.bytes)
        case Binary():
            key = of("binary", struct.pack(">IB", len(value), value.subtype) + bytes(value))
        case datetime.datetime():
            millis = round((value - datetime.datetime(1970, 1, 1)) / datetime.timedelta(milliseconds=1))
            key = of("date", struct.pack(">Q", millis + 2**63))
        case Timestamp():
            key = of("timestamp", struct.pack(">II", value.time, value.inc))
        case Regex():
            flags = "".join(letter for letter, bit in (("i", 2), ("m", 8), ("s", 16), ("x", 64)) if value.flags & bit)
            key = of("regular expression", value.pattern.encode() + b"\0" + flags.encode() + b"\0")
        case MinKey():
            key = of("MinKey")
        case MaxKey():
            key = of("MaxKey")
        case dict():
            fields = [(key_of(v)[:1], name.encode() + b"\0", key_of(v)[1:]) for name, v in value.items()]
            key = of("document", b"".join(b"".join(parts) for parts in fields) + b"\0")
    return bytes(255 - b for b in key) if descending else key


VALUES = [
    MinKey(), None, float("-inf"), -2.5, -1, 0, 7, 7.25, 2**40, "", "a\0b", "a\1", "ä", {}, {"a": 1}, {"a": "x", "b": None},
    Binary(b"ab", 5), ObjectId(), False, True, datetime.datetime(1960, 5, 1), datetime.datetime(2026, 11, 28), Timestamp(5, 7),
    Regex("^a", "im"), Code("f()"), MaxKey(),
]


def test_keys_and_types(new_server):
    server = new_server()
    with server.client() as client:
        coll = client.t.keys
        coll.create_index("v")
        coll.insert_many([{"_id": n, "v": v} for n, v in enumerate(VALUES)])
        coll.insert_many([{"_id": 100, "v": Int64(1)}, {"_id": 101, "v": Decimal128("1.0")}, {"_id": 102, "v": 2.0}, {"_id": 103}])
        in_order = [d["_id"] for d in coll.find({"_id": {"$lt": 100}}).sort("v", 1).hint("v_1")]
    all_keys = keyspace(stopped(server))
    under = {parted(k)[3]: v for k, v in all_keys.items() if parted(k)[1] == 2}
    for n, value in enumerate(VALUES):
        assert key_of(value) + key_of(n) in under, value
    by_key = sorted((key_of(v), n) for n, v in enumerate(VALUES))
    assert [n for _, n in by_key] == in_order
    types = {n: under[key_of(v) + key_of(n)] for n, v in [(100, 1), (101, 1), (102, 2), (103, None), (6, 7), (9, "")]}
    assert types == {100: b"\1", 101: b"\3" + (8192 - 1).to_bytes(2, "big"), 102: b"\2", 103: b"\1", 6: b"", 9: b""}
    # A number between two doubles has its digits behind the lower one.
    assert not any(k.startswith(bytes([RANKS["numbers"]]) + sortable(1.0) + b"\1") for k in under)


def test_a_number_between_two_doubles(new_server):
    server = new_server()
    with server.client() as client:
        client.t.c.insert_many([{"_id": Int64(2**60 + 1)}, {"_id": Int64(-(2**60) - 1)}])
    found = {parted(k)[3] for k in keyspace(stopped(server)) if parted(k)[1] == 1}
    # 34 digits: the coefficient ends where they do.
    digits = str(2**60 + 1).ljust(34, "0")
    exponent = len(str(2**60 + 1)) - 34
    above = struct.pack(">i", exponent)
    above = bytes([above[0] ^ 0x80]) + above[1:] + int(digits).to_bytes(16, "big")
    below = bytes(255 - b for b in above)
    lower = -(2.0**60)
    wanted = {
        bytes([RANKS["numbers"]]) + sortable(2.0**60) + b"\1" + above,
        bytes([RANKS["numbers"]]) + sortable(math.nextafter(lower, -math.inf)) + b"\1" + below,
    }
    assert found >= wanted


def test_the_stamp_and_the_files(new_server):
    server = new_server()
    path = stopped(server)
    line = section("The stamp").split("```text\n")[1].split("```")[0]
    assert (path / "PANDO").read_text() == line
    [oldest] = [int(row[0]) for row in tables("The stamp")[0] if "every new directory" in row[1]]
    assert line == f"pando data format {oldest}\n"
    named = {name.strip("/") for row in tables("The directory")[0] for name in row[0].split(", ")}
    assert {f.name for f in path.iterdir()} <= named, "a file of the directory is not on the page"


def test_an_encrypted_directory(new_server, tmp_path):
    master, key_file = os.urandom(32), tmp_path / "master"
    key_file.write_text(base64.b64encode(master).decode())
    key_file.chmod(0o600)
    server = new_server("--enableEncryption", "--encryptionKeyFile", key_file)
    with server.client() as client:
        work(client)
        there = list(client.t.c.find())
    path = stopped(server)
    assert (path / "PANDO").read_text() == "pando data format 104\n" and "| 104, 105 |" in TEXT
    head, last = (path / "PANDO.key").read_text().split("sum ")
    assert last == hashlib.sha256(head.encode()).hexdigest()[:16] + "\n"
    title, master_line, wrapped = head.splitlines()
    assert master_line == "master " + mac(master, b"pando master key id")[:8].hex()
    wrapped = bytes.fromhex(wrapped.removeprefix("wrapped "))
    data_key = AESGCM(master).decrypt(wrapped[:12], wrapped[12:], title.encode())

    def cipher(first):
        return AESGCM(derived(data_key, "segment", struct.pack("<Q", first)))

    records = [bson.decode(v) for k, v in keyspace(path, cipher).items() if parted(k)[1] == 1]
    assert all(document in records for document in there)
    layout = Layout("Header of an encrypted file")
    assert layout.bytes == 4096
    read = 0
    for file in [f for f in (path / "engine").iterdir() if f.name != "LOG" and not f.name.startswith("LOG.") and f.name != "LOCK"]:
        data = file.read_bytes()
        header = layout.read(data)
        assert header["magic"] == escaped(layout.value("magic")), file
        assert header["proof"] == mac(derived(data_key, "file header", b""), data[:48])
        assert not any(header["zero"])
        counter = (layout.bytes // 16).to_bytes(16, "big")
        key = derived(data_key, "file", header["salt"])
        plain = Cipher(algorithms.AES(key), modes.CTR(counter)).decryptor().update(data[layout.bytes :])
        if file.name == "CURRENT":
            read += plain.startswith(b"MANIFEST-")
    assert read == 1


def fingerprint(payload):
    found = 0xCBF29CE484222325
    for byte in payload:
        found = (found ^ byte) * 0x100000001B3 % 2**64
    return found


def opened(data, key, name):
    """The content of an encrypted object."""
    layout = Layout("Encrypted object")
    header = layout.read(data)
    assert header["magic"] == escaped(layout.value("magic"))
    cipher, size = AESGCM(mac(key, b"object\0", header["salt"])), layout.fields["piece"][1]
    pieces = data[layout.fields["piece"][0] :]
    out = b""
    for n in range(0, max(1, -(-len(pieces) // size))):
        piece = pieces[n * size : (n + 1) * size]
        is_last = (n + 1) * size >= len(pieces)
        out += cipher.decrypt(bytes(7) + n.to_bytes(4, "big") + bytes([is_last]), piece, name.encode())
    return out


@pytest.mark.parametrize("encrypted", [False, True])
def test_an_archive(new_server, tmp_path, encrypted):
    key = os.urandom(32)
    (tmp_path / "key").write_text(base64.b64encode(key).decode())
    options = ["--key-file", tmp_path / "key"] if encrypted else []
    server, archive = new_server(), tmp_path / "archive"
    uri = f"mongodb://127.0.0.1:{server.port}/?directConnection=true"
    with server.client() as client:
        client.t.c.insert_one({"_id": 1})
        pando("backup", uri, archive, *options)
        client.t.c.insert_one({"_id": 2})
        pando("backup", uri, archive, *options)
    objects = {str(f.relative_to(archive)): f.read_bytes() for f in archive.rglob("*") if f.is_file()}
    stamp = json.loads(objects.pop("PANDO-ARCHIVE"))
    assert stamp["format"] == 1 and stamp["encrypted"] == encrypted
    plain = {name: opened(data, key, name) if encrypted else data for name, data in objects.items()}
    backups = [json.loads(data) for name, data in plain.items() if name.startswith("backups/")]
    assert len(backups) == 2
    files = {f["sha256"] for b in backups for s in b["sets"] for f in s["files"]}
    for sha256 in files:
        name = mac(key, b"file\0", bytes.fromhex(sha256)).hex() if encrypted else sha256
        assert hashlib.sha256(plain[f"files/{name[:2]}/{name}"]).hexdigest() == sha256
    layout, indexes, kinds = Layout("Packed entry"), set(), set()
    for name, data in plain.items():
        if name.startswith("log/"):
            packed, at = zstandard.ZstdDecompressor().stream_reader(data).read(), 0
            while at < len(packed):
                found = layout.read(packed, at)
                payload = packed[at + layout.bytes : at + layout.bytes + found["length"]]
                assert found["fingerprint"] == fingerprint(payload)
                kinds.add(entry(payload)["kind"])
                indexes.add(found["index"])
                at += layout.bytes + found["length"]
            first, last = name.rsplit("/", 1)[1].split("-")
            assert int(first) in indexes and int(last) in indexes and len(first) == 20
    assert "insert" in kinds and len(objects) == len(files) + 2 + sum(n.startswith("log/") for n in objects)


def test_the_state_of_a_member(new_server):
    server = new_server("--replSet", "rs0")
    with server.client() as client:
        client.admin.command("replSetInitiate", {"_id": "rs0", "members": [{"_id": 0, "host": f"localhost:{server.port}"}]})
        until("it is primary", lambda: client.admin.command("hello")["isWritablePrimary"])
        config = client.admin.command("replSetGetConfig")["config"]
        client.admin.command("replSetReconfig", config | {"version": config["version"] + 1})
    state = bson.decode((stopped(server) / "replica-set.bson").read_bytes())
    fields = {name for row in tables("The state of a member")[0] for name in row[0].split(", ")}
    assert set(state) <= fields and state["id"] == 1 and state["voters"] == [1] and state["config"]["_id"] == "rs0"
    [membership] = [e["operation"] for _, e in entries(server.path) if e["kind"] == "membership"]
    assert bson.decode(membership[0])["version"] == config["version"] + 1 and membership[1] == b""


def unzigzag(n):
    return n >> 1 ^ -(n & 1)


def integers(b, count, twice):
    last = step = 0
    for _ in range(count):
        more = unzigzag(b.varint()) + (step if twice else 0)
        last, step = last + more, more
        yield last


def column(data):
    """The values of a column of dates, integers and doubles."""
    b = Bytes(data)
    while not b.ended():
        kind, count = b.take(1)[0], b.varint()
        match kind:
            case 9 | 16 | 18:
                yield from integers(b, count, twice=kind == 9)
            case 1:
                scale = b.take(1)[0]
                if scale < 10:
                    yield from (n / 10**scale for n in integers(b, count, twice=False))
                    continue
                last = 0
                for _ in range(count):
                    last ^= int.from_bytes(b.take(b.take(1)[0]).ljust(8, b"\0"), "big")
                    yield struct.unpack(">d", last.to_bytes(8, "big"))[0]
            case 2:
                last = None
                for _ in range(count):
                    last = b.take(size - 1) if (size := b.varint()) else last
                    yield last[4:-1].decode()
            case 7:
                seconds, random, counter = 0, bytes(5), 0
                for _ in range(count):
                    first = b.varint()
                    seconds += unzigzag(first >> 1)
                    random = b.take(5) if first & 1 else random
                    counter += unzigzag(b.varint())
                    yield ObjectId(seconds.to_bytes(4, "big") + random + counter.to_bytes(3, "big"))


def test_buckets_of_time_series(db):
    db.create_collection("series", timeseries={"timeField": "t", "metaField": "m"})
    begin = datetime.datetime(2026, 1, 1)
    made = [{"_id": ObjectId(), "t": begin + datetime.timedelta(seconds=n), "m": "few", "n": n} for n in range(3)]
    made += [
        {"_id": ObjectId(), "t": begin + datetime.timedelta(seconds=n), "m": "many", "n": n, "d": n / 4, "x": (n * 0.1) ** 0.5, "s": "ab"[n % 2]}
        for n in range(300)
    ]
    db.series.insert_many(made)
    seen, forms = [], set()
    for bucket in db["system.buckets.series"].find():
        b, count = Bytes(bytes(bucket["data"])), bucket["control"]["count"]
        form = b.take(1)[0]
        forms.add(form)
        if form == 0:
            for _ in range(count):
                size = int.from_bytes(b.data[b.at : b.at + 4], "little")
                seen.append(bson.decode(b.take(size)) | {"m": bucket["meta"]})
            continue
        rows = b.varint()
        names = [b.bytes().decode() for _ in range(b.varint())]
        assert rows == count and names[0] == "t"
        shapes = [[b.varint() for _ in range(b.varint())] for _ in range(b.varint())]
        runs = []
        while sum(many for _, many in runs) < rows:
            runs.append((b.varint(), b.varint()))
        columns = []
        for _ in names:
            values = b.varint()
            columns.append(list(column(b.bytes())))
            assert len(columns[-1]) == values
        assert b.ended()
        columns = [iter(c) for c in columns]
        for shape, many in runs:
            for _ in range(many):
                row = {names[c]: next(columns[c]) for c in shapes[shape]}
                row["t"] = datetime.datetime(1970, 1, 1) + datetime.timedelta(milliseconds=row["t"])
                seen.append(row | {"m": bucket["meta"]})
    assert forms == {0, 1}
    assert sorted(seen, key=lambda d: d["_id"]) == sorted(made, key=lambda d: d["_id"])


def test_files_of_search_indexes(new_server):
    server = new_server()
    vectors = [[1.0, 0.5, -2.0], [0.25, 0.0, 4.0]]
    with server.client() as client:
        coll = client.t.v
        coll.insert_many([{"_id": n, "v": v} for n, v in enumerate(vectors)])
        fields = [{"type": "vector", "path": "v", "numDimensions": 3, "similarity": "euclidean"}]
        indexed(coll, {"fields": fields}, "vectors", "vectorSearch")
    [folder] = (stopped(server) / "search").iterdir()
    slots, found = (folder / "vectors-0.f32").read_bytes(), []
    for at in range(0, len(slots), 16):
        assert crc32c(slots[at : at + 12]) == int.from_bytes(slots[at + 12 : at + 16], "little")
        found.append(list(struct.unpack("<3f", slots[at : at + 12])))
    assert sorted(found) == sorted(vectors)
    meta = (folder / "meta.json").read_bytes()
    text, sum_of_it = meta[:-4], int.from_bytes(meta[-4:], "little")
    assert crc32c(text) == sum_of_it
    payload = json.loads(json.loads(text)["payload"])
    assert payload["layout"] == 5 and payload["slots"] == [2] and payload["index"] > 0
    named = {name for row in tables("Search indexes")[0] for name in row[0].split(", ")}
    others = {f.name for f in folder.iterdir() if not f.name.split(".")[0].isalnum() or len(f.name.split(".")[0]) != 32}
    shown = {name.replace("vectors-0", "vectors-N").replace("graph-0", "graph-N") for name in others if not name.endswith(".lock")}
    assert shown <= named


def test_the_page_agrees_with_itself():
    assert FRAME.bytes == 44 and Layout("Segment header").bytes == 48 and Layout("Count").bytes == 32
    assert sorted(RANKS.values()) == sorted(int(byte, 16) for types, byte, _ in tables("Keys")[0] for _ in types.split(", "))
