"""Encryption at rest: `--enableEncryption --encryptionKeyFile`, what lies on the disk, and what happens to keys."""

import base64
import contextlib
import os
import shutil
import subprocess

import pytest
from harness import BINARY, Server, run_pando, until
from pymongo.operations import SearchIndexModel
from replica_set import ReplicaSet, sees

MARK = "nobody-reads-this"
NO_KEY, CANNOT_OPEN = "its key is wanted", 100


def key(path, byte=None):
    path.write_text(base64.b64encode(bytes([byte]) * 32 if byte else os.urandom(32)).decode() + "\n")
    path.chmod(0o600)
    return path


def with_key(path):
    return ["--enableEncryption", "--encryptionKeyFile", path]


@pytest.fixture
def master(tmp_path):
    return key(tmp_path / "master")


def pando(*words, code=0):
    """All that it writes."""
    done = run_pando(*words)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def refusal(path, *options):
    """The last words of a server that does not start."""
    server = Server(path, *options)
    server.log.unlink(missing_ok=True)
    with pytest.raises(RuntimeError):
        server.start()
    return server.tail()


def fill(client, count=300):
    coll = client.t[f"{MARK}-collection"]
    coll.insert_many([{"_id": f"{MARK}{n}", "x": n, "text": MARK * 20} for n in range(count)])
    coll.create_index("text")
    client.admin.command("fsync")
    coll.insert_one({"_id": "behind", "text": MARK})
    return coll


def count(server):
    with server.client() as client:
        return client.t[f"{MARK}-collection"].count_documents({})


def readable(path, but=()):
    files = [f for f in path.rglob("*") if f.is_file() and not f.name.startswith(but or "\0")]
    assert files
    return [f for f in files if MARK.encode() in f.read_bytes()]



def pando_any(*words):
    done = subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


def test_no_file_is_readable_and_all_is_there_after_a_kill(new_server, tmp_path, master):
    server = new_server(*with_key(master))
    with server.client() as client:
        coll = fill(client)
        # What does not fit into memory goes to files without names.
        temporary = [{"$group": {"_id": "$_id", "all": {"$push": "$text"}}}, {"$sort": {"all": 1, "_id": 1}}]
        client.admin.command("setParameter", 1, internalQueryMaxBlockingSortMemoryUsageBytes=10_000)
        grouped = [d["_id"] for d in coll.aggregate(temporary, allowDiskUse=True)]
        assert grouped == sorted(d["_id"] for d in coll.find({}, {"_id": 1}))
    server.kill()
    assert readable(server.path) == []
    for path in server.path.rglob("*"):
        assert not path.stat().st_mode & 0o077, path
    server.start()
    assert count(server) == 301
    server.kill()
    # The same without a key is readable, for comparison.
    with Server(tmp_path / "plain") as plain, plain.client() as client:
        fill(client)
        assert len(readable(plain.path)) > 1


def test_search_indexes_are_encrypted(new_server, tmp_path, master):
    def make(client):
        coll = client.t.s
        coll.insert_many([{"_id": n, "text": f"{MARK} word{n}", "v": [1, n / 300]} for n in range(3000)])
        coll.create_search_index(SearchIndexModel({"mappings": {"dynamic": True}}, "text"))
        fields = [{"type": "vector", "path": "v", "numDimensions": 2, "similarity": "euclidean"}]
        coll.create_search_index(SearchIndexModel({"fields": fields}, "vectors", "vectorSearch"))

    def is_found(client):
        coll = client.t.s
        if not all(i["queryable"] for i in coll.list_search_indexes()):
            return False
        text = [{"$search": {"index": "text", "text": {"path": "text", "query": "word77 word2999"}}}, {"$project": {"_id": 1}}]
        near = {"index": "vectors", "path": "v", "queryVector": [1, 5], "limit": 3, "numCandidates": 50}
        vectors = [d["_id"] for d in coll.aggregate([{"$vectorSearch": near}, {"$project": {"_id": 1}}])]
        return sorted(d["_id"] for d in coll.aggregate(text)) == [77, 2999] and sorted(vectors) == [1499, 1500, 1501]

    def plain_words(path):
        files = [f for f in (path / "search").rglob("*") if f.is_file()]
        assert sum(f.stat().st_size for f in files) > 50_000
        return [f for f in files if b"word2999" in f.read_bytes() or b"segments" in f.read_bytes()]

    server = new_server(*with_key(master))
    with server.client() as client:
        make(client)
        until("all is found", lambda: is_found(client))
        client.t.s.insert_one({"_id": "late", "text": "latecomer", "v": [9, 9]})
    server.kill()
    assert plain_words(server.path) == []
    server.start()
    with server.client() as client:
        until("all is found again", lambda: is_found(client))
        late = [{"$search": {"index": "text", "text": {"path": "text", "query": "latecomer"}}}]
        until("what came last too", lambda: [d["_id"] for d in client.t.s.aggregate(late)] == ["late"])
    # The same without a key is readable, for comparison.
    with Server(tmp_path / "plain") as plain, plain.client() as client:
        make(client)
        until("all is found", lambda: is_found(client))
        assert plain_words(plain.path)


def test_kills_under_writes_lose_nothing_that_was_acknowledged(new_server, master):
    server, done = new_server(*with_key(master)), 0
    for _ in range(3):
        with contextlib.suppress(Exception), server.client(w=1, retryWrites=False, serverSelectionTimeoutMS=300) as client:
            for n in range(100):
                client.t.c.insert_one({"_id": done, "mark": MARK * 30})
                done += 1
                if n == 60:
                    server.kill()
        server.kill()
        server.start()
        with server.client() as client:
            found = [d["_id"] for d in client.t.c.find().sort("_id")]
            assert found[:done] == list(range(done)) and len(found) <= done + 1
            client.t.c.delete_many({"_id": {"$gte": done}})
            client.admin.command("fsync")
    server.kill()
    assert done > 150 and readable(server.path) == []


def test_keys_that_are_wrong_missing_or_rotated(new_server, tmp_path, master):
    server = new_server(*with_key(master))
    with server.client() as client:
        fill(client, 10)
    assert "in use" in pando("rekey", server.path, "--encryptionKeyFile", master, "--newKeyFile", master, code=1)
    server.stop()
    other, path = key(tmp_path / "other"), server.path
    before = {f: f.read_bytes() for f in path.rglob("*") if f.is_file() and f.name != "pando.lock"}
    assert NO_KEY in refusal(path)
    assert "another master key" in refusal(path, *with_key(other))
    assert "needs --encryptionKeyFile" in refusal(path, "--enableEncryption")
    open_key = key(tmp_path / "open")
    open_key.chmod(0o644)
    assert "too open" in refusal(path, *with_key(open_key))
    for tool in (["check", path], ["salvage", path, tmp_path / "out"]):
        assert NO_KEY in pando(*tool, code=100)
        assert "another master key" in pando(*tool, "--encryptionKeyFile", other, code=100)
    own = path / "PANDO.key"
    whole = own.read_text()
    own.write_text(whole.replace("wrapped ", "wrapped 0", 1))
    assert "PANDO.key is damaged" in refusal(path, *with_key(master))
    own.unlink()
    assert "PANDO.key is missing" in refusal(path, *with_key(master))
    assert "PANDO.key is missing" in pando("check", path, "--encryptionKeyFile", master, code=100)
    own.write_text(whole)
    after = {f: f.read_bytes() for f in path.rglob("*") if f.is_file() and f.name != "pando.lock"}
    assert after == before, "what is refused is left as it is"
    assert "another master key" in pando("rekey", path, "--encryptionKeyFile", other, "--newKeyFile", master, code=1)
    assert "--encryptionKeyFile" in pando("rekey", path, "--encryptionKeyFile", master, "--newKeyFile", other)
    assert own.read_text() != whole
    assert "another master key" in refusal(path, *with_key(master))
    with Server(path, *with_key(other)) as back:
        assert count(back) == 11


def test_a_plain_directory_is_refused_and_the_way_is_named(new_server, tmp_path, master):
    server = new_server()
    with server.client() as client:
        client.t.c.insert_one({"_id": 1})
    server.stop()
    said = refusal(server.path, *with_key(master))
    assert "mongodump" in said and "initial sync" in said
    assert not (server.path / "PANDO.key").exists()
    rekey = ("rekey", server.path, "--encryptionKeyFile", master, "--newKeyFile", master)
    assert "is not encrypted" in pando(*rekey, code=1)
    with server.start().client() as client:
        assert client.t.c.count_documents({}) == 1


def test_damage_is_told_from_a_wrong_key(new_server, tmp_path, master):
    server = new_server(*with_key(master))
    with server.client() as client:
        fill(client, 3000)
    server.kill()
    path, tool = server.path, ("--encryptionKeyFile", master)
    assert "No damage" in pando("check", path, *tool)
    assert "insert" in pando("oplog", path, *tool) or MARK in pando("oplog", path, *tool)
    assert pando("salvage", path, tmp_path / "whole", *tool) and readable(tmp_path / "whole")
    largest = max(path.glob("engine/*.sst"), key=lambda f: f.stat().st_size)
    bytes_ = bytearray(largest.read_bytes())
    middle = len(bytes_) // 2
    bytes_[middle : middle + 8] = b"\0" * 8
    shutil.copytree(path, tmp_path / "bent")
    (tmp_path / "bent" / "engine" / largest.name).write_bytes(bytes_)
    said = pando("check", tmp_path / "bent", *tool, code=1)
    assert "DAMAGED" in said and largest.name in said
    pando("salvage", tmp_path / "bent", tmp_path / "saved", *tool, code=1)
    # The header of a file: the engine does not open, and the others are saved. Then an entry of the log.
    bytes_[20] ^= 1
    (tmp_path / "bent" / "engine" / largest.name).write_bytes(bytes_)
    said = pando("check", tmp_path / "bent", *tool, code=100)
    assert "the header of the encrypted file is damaged" in said and "pando salvage" in said
    pando("salvage", tmp_path / "bent", tmp_path / "others", *tool, code=1)
    shutil.copy(largest, tmp_path / "bent" / "engine")
    segment = next((tmp_path / "bent" / "log").iterdir())
    entries = bytearray(segment.read_bytes())
    entries[200] ^= 1
    segment.write_bytes(entries)
    assert "the log is damaged at entry" in pando("check", tmp_path / "bent", *tool, code=1)
    # The engine's books are made anew from files that are encrypted.
    shutil.copytree(path, tmp_path / "unbooked")
    (tmp_path / "unbooked" / "engine" / "CURRENT").unlink()
    pando("salvage", tmp_path / "unbooked", tmp_path / "rebuilt", *tool, code=1)
    assert sum(f.stat().st_size for f in readable(tmp_path / "rebuilt")) > 3000 * len(MARK)


def test_backups_are_encrypted_and_come_back(new_server, tmp_path, master):
    server = new_server(*with_key(master))
    uri, archive, tool = f"mongodb://{server.address}/", tmp_path / "archive", ("--encryptionKeyFile", master)
    with server.client() as client:
        coll = fill(client)
        assert "make one with --key-file" in pando("backup", uri, tmp_path / "clear", code=1)
        archive_key = key(tmp_path / "archive-key")
        pando("backup", uri, archive, "--key-file", archive_key)
        coll.insert_one({"_id": "later"})
        pando("backup", uri, archive, "--key-file", archive_key)
        in_place = tmp_path / "in-place"
        pando("backup", uri, in_place, "--in-place")
        coll.insert_one({"_id": "behind the copy"})
        pando("restore", in_place, tmp_path / "whole", *tool)
    server.kill()
    assert readable(archive) == [] and readable(in_place) == []
    restore = ("restore", archive, tmp_path / "back", "--key-file", archive_key)
    assert NO_KEY in pando(*restore, code=1)
    assert "another master key" in pando(*restore, "--encryptionKeyFile", key(tmp_path / "other"), code=1)
    assert not (tmp_path / "back").exists()
    pando(*restore, *tool)
    for path, wanted in ((tmp_path / "back", 302), (in_place, 302), (tmp_path / "whole", 303)):
        assert readable(path) == []
        assert NO_KEY in refusal(path)
        with Server(path, *with_key(master)) as back:
            assert count(back) == wanted, path


@pytest.mark.parametrize("encrypted", [(True, True, False), (False, True)], ids=["from encrypted", "from plain"])
def test_a_secondary_encrypts_what_it_copies_with_a_key_of_its_own(tmp_path, encrypted):
    """A set whose data are plain becomes an encrypted one, member by member; and the other way round."""
    options = ["--log-retain", "2", "--setParameter", "clientCursorMonitorFrequencySecs=1"]
    members = ReplicaSet(tmp_path, size=len(encrypted), options=options)
    for n, (member, is_encrypted) in enumerate(zip(members.members, encrypted)):
        if is_encrypted:
            member.options += map(str, with_key(key(tmp_path / f"key{n}")))
    with members:
        first, *others = members.members
        with first.client() as client:
            one = {"_id": "rs", "members": [{"_id": 0, "host": first.address}]}
            client.admin.command("replSetInitiate", one)
            until("it is primary", lambda: client.admin.command("hello")["isWritablePrimary"])
            for n in range(60):
                client.t.c.insert_one({"_id": n, "mark": MARK, "bytes": os.urandom(60_000)})

            def trimmed():
                client.admin.command("fsync")
                entry = client.local["oplog.rs"].find_one(sort=[("$natural", 1)])
                return entry["op"] == "i" and entry["ns"] == "t.c" and entry["o"]["_id"] > 0

            until("the log is trimmed", trimmed)
            config = client.admin.command("replSetGetConfig")["config"]
            config["version"] += 1
            for n, other in enumerate(others, 1):
                config["members"].append({"_id": n, "host": other.address, "votes": 0, "priority": 0})
            client.admin.command("replSetReconfig", config)
            for other in others:
                sees(other, {}, 60, timeout_s=60)
            client.t.c.insert_one({"_id": 60, "mark": MARK})
            for other in others:
                sees(other, {}, 61)
                other.kill()
            keys = [m.path / "PANDO.key" for m in members.members]
            assert [k.exists() for k in keys] == list(encrypted)
            texts = [k.read_text() for k in keys if k.exists()]
            assert len(set(texts)) == len(texts)
            client.t.c.insert_one({"_id": 61, "mark": MARK})
            for other in others:
                sees(other.start(), {}, 62)
        for member, is_encrypted in zip(members.members, encrypted):
            member.kill()
            assert bool(readable(member.path)) != is_encrypted, member.path


def test_a_deployment_of_one_command_is_encrypted(tmp_path, master):
    place = tmp_path / "d"
    up = ["cluster", "up", "--replicas", "1", "--dir", place, "--port", Server(tmp_path).port, "--", "--cache", "16MB"]
    try:
        pando(*up, *with_key(master))
        assert list(place.rglob("PANDO.key"))
        pando("cluster", "down", "--dir", place)
        pando("cluster", "up", "--dir", place)
    finally:
        pando_any("cluster", "down", "--dir", place)
