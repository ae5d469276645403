"""Archives in stores that speak S3: the same commands, on `s3://BUCKET/PREFIX`."""

import contextlib
import os
import socket
import subprocess

import bson
import pytest
import harness
from harness import free_port, until
from s3_store import Store
from test_backup_archive import documents, newest, uri

REAL = os.environ.get("PANDO_S3")
PLACE = "s3://bucket/nightly/shop"


def pando(*words, store, code=0, **changed):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    return harness.pando(*words, code=code, env={**clean, **store.environment(), **changed})


class Versity:
    """A real store: versitygw on a directory, which proves signatures."""

    def __init__(self, path):
        self.port = free_port()
        (path / "store" / "bucket").mkdir(parents=True)
        secrets = {"ROOT_ACCESS_KEY": "key", "ROOT_SECRET_KEY": "secret"}
        words = [REAL, "--port", f"127.0.0.1:{self.port}", "posix", path / "store"]
        self.process = subprocess.Popen(words, env={**os.environ, **secrets}, stdout=subprocess.DEVNULL)

    def environment(self):
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        return dict(zip(names, (f"http://127.0.0.1:{self.port}", "key", "secret"), strict=True))

    def __enter__(self):
        until("it answers", self.answers)
        return self

    def answers(self):
        with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", self.port), timeout=5):
            return True
        return False

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


@pytest.fixture(params=["failing", "versitygw"])
def store(request, tmp_path):
    if request.param == "versitygw" and not REAL:
        pytest.skip("PANDO_S3 names no versitygw")
    made = Versity(tmp_path) if request.param == "versitygw" else Store(fails_each=7)
    with made as running:
        yield running


def ids(store, *options):
    return [line.split()[0] for line in pando("backup", "list", PLACE, *options, store=store).splitlines() if line.startswith("20")]


def test_backups_live_in_a_bucket(new_server, tmp_path, store):
    server = new_server()
    with server.client(w="majority") as client:
        # More than one part of an upload: random bytes are not made smaller.
        client.t.c.insert_many([{"_id": i, "text": os.urandom(60_000)} for i in range(300)])
        assert "all were read there" in pando("backup", uri(server), PLACE, store=store)
        assert not isinstance(store, Store) or store.of_parts
        between = newest(client)
        client.t.c.drop()
        client.t.other.insert_one({"_id": 1})
        pando("backup", uri(server), PLACE, store=store)
    server.kill()
    assert len(ids(store)) == 2
    assert "All is as it was: 2 backups" in pando("backup", "verify", PLACE, store=store)
    pando("restore", PLACE, tmp_path / "between", "--until", between, store=store)
    assert documents(tmp_path / "between") == {"c": list(range(300))}
    said = pando("restore", PLACE, tmp_path / "dump", "--until", between, "--only", "t.c", store=store)
    assert "mongorestore" in said and len(bson.decode_all((tmp_path / "dump/t/c.bson").read_bytes())) == 300
    last = ids(store)[-1]
    assert "1 backups stay, 1 went" in pando("backup", "prune", PLACE, "--keep", 1, store=store)
    assert ids(store) == [last]
    pando("backup", "verify", PLACE, store=store)
    pando("restore", PLACE, tmp_path / "end", store=store)
    assert documents(tmp_path / "end") == {"other": [1]}


def test_an_encrypted_archive_in_a_bucket_says_nothing(new_server, tmp_path):
    server, key = new_server(), tmp_path / "key"
    key.write_text("0c" * 32)
    with Store() as store:
        with server.client(w="majority") as client:
            client.t.c.insert_one({"_id": "a secret word"})
            pando("backup", uri(server), PLACE, "--key-file", key, store=store)
        assert all(k.startswith("nightly/shop/") for k in store.objects)
        assert not any(b"a secret word" in content for content in store.objects.values())
        assert "is encrypted" in pando("backup", "list", PLACE, store=store, code=1)
        assert len(ids(store, "--key-file", key)) == 1
        name, content = next((k, v) for k, v in store.objects.items() if "/files/" in k)
        store.keep(name, content[:-1] + bytes([content[-1] ^ 1]))
        pando("backup", "verify", PLACE, "--key-file", key, store=store, code=1)


def test_a_store_proves_who_it_is(authority):
    with Store(certificate=authority.issue("server")) as store:
        known = {"store": store, "code": 1, "AWS_CA_BUNDLE": str(authority.file)}
        assert "is no archive of backups" in pando("backup", "list", PLACE, **known)
        for bundle in ("", str(authority.file) + ".none"):
            said = pando("backup", "list", PLACE, **{**known, "AWS_CA_BUNDLE": bundle})
            assert "is no archive of backups" not in said and "Signature" not in said and ("not reached" in said or "authorities" in said or "none:" in said), said


def test_what_a_store_refuses_is_said(new_server, tmp_path):
    server = new_server()
    with Store() as store:
        refused = {"store": store, "code": 1}
        assert "is no archive of backups" in pando("backup", "list", PLACE, **refused)
        assert "NoSuchBucket" in pando("backup", uri(server), "s3://elsewhere/x", **refused)
        assert "s3://BUCKET/PREFIX" in pando("backup", "list", "s3://", **refused)
        assert "both or neither" in pando("backup", "list", PLACE, **refused, AWS_SECRET_ACCESS_KEY="")
        said = pando("backup", uri(server), PLACE, **refused, AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
        assert "AccessDenied" in said and "no backup was made" in said
        assert "nothing was restored" in pando("restore", PLACE, tmp_path / "x", **refused)
        assert store.objects == {} and not (tmp_path / "x").exists()
        assert "no stores of the kind 'ftp'" in pando("backup", "list", "ftp://x/y", **refused)


def test_files_are_moved_beside_each_other_and_no_more_than_four(new_server, tmp_path):
    server = new_server()
    with server.client() as client, Store(seconds=0.05) as store:
        client.t.c.insert_many([{"_id": i, "text": os.urandom(2000)} for i in range(200)])
        most = []
        for words in (("backup", uri(server), PLACE), ("backup", "verify", PLACE), ("restore", PLACE, tmp_path / "back")):
            store.most_at_once = 0
            pando(*words, store=store)
            most.append(store.most_at_once)
        assert all(2 <= n <= 4 for n in most), most
    assert documents(tmp_path / "back") == {"c": list(range(200))}
