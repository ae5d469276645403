"""Archives of backups: `pando backup URI ARCHIVE`, its list, verify and prune, `--follow`, and `pando restore` from them."""

import contextlib
import signal
import subprocess

import bson
import pytest
from harness import BINARY, Server, pando, until
from replica_set import ReplicaSet
from sharded_cluster import at_rest
from test_sharding_backup import start_from


def uri(server):
    return f"mongodb://{server.address}/"


def newest(client):
    ts = client.local["oplog.rs"].find().sort("$natural", -1).limit(1)[0]["ts"]
    return f"{ts.time}:{ts.inc}"


def documents(path):
    with Server(path) as server, server.client() as client:
        return {c: sorted(d["_id"] for d in client.t[c].find()) for c in client.t.list_collection_names()}


def size(archive, under):
    return sum(f.stat().st_size for f in (archive / under).rglob("*") if f.is_file())


def ids(archive):
    return [line.split()[0] for line in pando("backup", "list", archive).splitlines() if line.startswith("20")]


def test_a_second_backup_adds_what_is_new_and_any_moment_is_gone_back_to(new_server, tmp_path):
    server, archive = new_server(), tmp_path / "archive"
    with server.client(w="majority") as client:
        coll = client.t.c
        coll.insert_many([{"_id": i, "text": bson.ObjectId().binary * 60} for i in range(3000)])
        said = pando("backup", uri(server), archive)
        assert "all were read there" in said and not any(server.path.glob("backup-staged/*"))
        first = size(archive, "files")
        between = newest(client)
        coll.insert_one({"_id": "between"})
        with_it = newest(client)
        coll.drop()
        client.t.other.insert_one({"_id": 1})
        pando("backup", uri(server), archive)
        assert size(archive, "files") - first < first / 2, "the files of the first are kept once"
        client.t.other.insert_one({"_id": "behind both"})
    for path in archive.rglob("*"):
        assert not path.stat().st_mode & 0o077, path
    assert len(ids(archive)) == 2
    assert "All is as it was: 2 backups" in pando("backup", "verify", archive)
    # The server is gone with its disk.
    server.kill()
    pando("restore", archive, tmp_path / "between", "--until", between)
    assert documents(tmp_path / "between") == {"c": list(range(3000))}
    pando("restore", archive, tmp_path / "with", "--until", with_it)
    with Server(tmp_path / "with") as back, back.client() as client:
        assert client.t.c.count_documents({}) == 3001 and client.t.c.find_one({"_id": "between"})
    pando("restore", archive, tmp_path / "end")
    assert documents(tmp_path / "end") == {"other": [1]}
    assert "the log ends at" in pando("restore", archive, tmp_path / "x", "--until", "2100-01-01T00:00:00Z", code=1)
    assert "of an earlier moment there is none" in pando("restore", archive, tmp_path / "x", "--until", "2020-01-01", code=1)
    assert "exists already" in pando("restore", archive, tmp_path / "end", code=1)
    left = [p.name for p in tmp_path.iterdir() if p.name.endswith((".fetching", ".whole", ".restoring"))]
    assert left == [] and not (tmp_path / "x").exists()


def test_chosen_collections_come_back_as_a_dump(new_server, tmp_path):
    server, archive = new_server(), tmp_path / "archive"
    with server.client(w="majority") as client:
        client.shop.orders.insert_many([{"_id": i} for i in range(10)])
        client.shop.orders.create_index("n")
        client.crm.people.insert_one({"_id": "p"})
        client.crm.other.insert_one({"_id": "o"})
        pando("backup", uri(server), archive)
        before = newest(client)
        client.shop.orders.drop()
        client.shop.later.insert_one({})
        pando("backup", uri(server), archive)
    said = pando("restore", archive, tmp_path / "dump", "--until", before, "--only", "shop,crm.people")
    assert "mongorestore" in said
    made = sorted(str(p.relative_to(tmp_path / "dump")) for p in (tmp_path / "dump").rglob("*.bson"))
    assert made == ["crm/people.bson", "shop/orders.bson"]
    docs = bson.decode_all((tmp_path / "dump/shop/orders.bson").read_bytes())
    assert [d["_id"] for d in docs] == list(range(10))
    assert '"n_1"' in (tmp_path / "dump/shop/orders.metadata.json").read_text()


def test_prune_lets_go_of_what_no_kept_backup_needs(new_server, tmp_path):
    server, archive = new_server(), tmp_path / "archive"
    with server.client(w="majority") as client:
        for n in range(3):
            client.t.c.insert_many([{"_id": f"{n}-{i}", "text": "x" * 500} for i in range(2000)])
            pando("backup", uri(server), archive)
    assert "prune wants --keep" in pando("backup", "prune", archive, code=2)
    assert "3 backups stay, 0 went" in pando("backup", "prune", archive, "--keep", 1, "--keep-days", 1)
    before = size(archive, ".")
    last = ids(archive)[-1]
    assert "1 backups stay, 2 went" in pando("backup", "prune", archive, "--keep", 1)
    assert ids(archive) == [last] and size(archive, ".") < before
    pando("backup", "verify", archive)
    pando("restore", archive, tmp_path / "end")
    assert len(documents(tmp_path / "end")["c"]) == 6000


@pytest.mark.parametrize("where", ["files", "log"])
def test_damage_in_an_archive_is_found_and_not_restored(new_server, tmp_path, where):
    server, archive = new_server(), tmp_path / "archive"
    with server.client(w="majority") as client:
        client.t.c.insert_many([{"_id": i, "text": bson.ObjectId().binary * 50} for i in range(500)])
        pando("backup", uri(server), archive)
    largest = max((p for p in (archive / where).rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    raw = bytearray(largest.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    largest.write_bytes(raw)
    assert "the archive is damaged" in pando("backup", "verify", archive, code=1)
    assert "nothing was restored" in pando("restore", archive, tmp_path / "x", code=1)
    assert not (tmp_path / "x").exists()
    if where == "files":
        largest.unlink()
        assert "missing" in pando("backup", "verify", archive, code=1)


def test_an_encrypted_archive_is_for_who_has_the_key(new_server, tmp_path):
    server, archive, key = new_server(), tmp_path / "archive", tmp_path / "key"
    key.write_text("q83vASNFZ4mrze8BI0VniavN7wEjRWeJq83vASNFZ4k=\n")
    with server.client(w="majority") as client:
        client.t.c.insert_many([{"_id": i, "word": "a telling word"} for i in range(100)])
    pando("backup", uri(server), archive, "--key-file", key)
    for path in (p for p in archive.rglob("*") if p.is_file()):
        assert b"telling" not in path.read_bytes() and b"engine" not in path.read_bytes()
    assert "--key-file" in pando("backup", "list", archive, code=1)
    assert "--key-file" in pando("restore", archive, tmp_path / "x", code=1)
    pando("backup", "verify", archive, "--key-file", key)
    pando("restore", archive, tmp_path / "end", "--key-file", key)
    assert documents(tmp_path / "end") == {"c": list(range(100))}
    key.write_text("00" * 32)
    assert "another key" in pando("backup", "list", archive, "--key-file", key, code=1)


@contextlib.contextmanager
def following(address, archive):
    with subprocess.Popen(
        [BINARY, "backup", address, archive, "--follow", "--every", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            for line in process.stdout:
                if "The log flows" in line:
                    break
            else:
                raise AssertionError(process.stderr.read())
            yield process
        finally:
            process.kill()


def last_moment(archive):
    return pando("backup", "list", archive).strip().splitlines()[-1].split(" to ")[1]


def test_the_log_of_a_set_flows_into_the_archive_over_an_election(tmp_path):
    """All machines are lost while clients write: only the last seconds are lost."""
    archive = tmp_path / "archive"
    with ReplicaSet(tmp_path) as members:
        members.initiate()
        with members.client(w="majority") as client:
            client.t.c.insert_many([{"_id": i} for i in range(100)])
            follower = members.secondaries()[0]
            with following(uri(follower), archive):
                client.t.c.insert_many([{"_id": i} for i in range(100, 200)])
                members.primary().kill()
                until("another leads", members.primary)
                client.t.c.insert_many([{"_id": i} for i in range(200, 300)])
                with follower.client() as own:
                    end = newest(own)

                def flowed():
                    seconds, increment = last_moment(archive).split("(")[1].rstrip(")").split(":")
                    return (int(seconds), int(increment)) >= tuple(map(int, end.split(":")))

                until("the archive has it", flowed)
    pando("backup", "verify", archive)
    pando("restore", archive, tmp_path / "end")
    assert documents(tmp_path / "end") == {"c": list(range(300))}


def test_a_log_that_does_not_go_on_is_told_and_begins_another_line(new_server, tmp_path):
    archive = tmp_path / "archive"
    first, second = new_server(), new_server(path=tmp_path / "second")
    with first.client(w="majority") as client:
        client.t.c.insert_one({"_id": 1})
    pando("backup", uri(first), archive)
    with second.client(w="majority") as client:
        client.t.c.insert_one({"_id": 2})
    done = subprocess.run([BINARY, "backup", uri(second), archive], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "does not go on where the archive ends" in done.stderr, done.stderr
    pando("backup", "verify", archive)
    for n, name in enumerate(ids(archive), 1):
        pando("restore", archive, tmp_path / f"r{n}", "--backup", name)
        assert documents(tmp_path / f"r{n}") == {"c": [n]}


def test_a_whole_cluster_goes_back_to_one_moment_between_its_backups(tmp_path):
    """Transactions over shards, before and behind the moment: each is there in all of its parts, or in none."""
    archive = tmp_path / "archive"
    with at_rest(tmp_path) as cluster:
        router = f"mongodb://{cluster.routers[0].address}/"
        with cluster.client(w="majority") as client:
            client.admin.command("shardCollection", "t.c", key={"_id": "hashed"})

            def pairs(first, count):
                for n in range(first, first + count):
                    with client.start_session() as session, session.start_transaction():
                        client.t.c.insert_many([{"_id": f"{n}-{half}", "n": n} for half in range(4)], session=session)

            pairs(0, 10)
            pando("backup", router, archive)
            pairs(10, 10)
            moment = client.admin.command("hello")["$clusterTime"]["clusterTime"]
            pairs(20, 10)
            client.t.drop_collection("c")
            pando("backup", router, archive)
        pando("backup", "verify", archive)
        said = pando("restore", archive, tmp_path / "back", "--until", f"{moment.time}:{moment.inc}")
        assert "--configsvr" in said and "--replSet s1" in said
        start_from(cluster, tmp_path / "back")
        with cluster.client() as client:

            def numbers():
                found = [d["n"] for d in client.t.c.find()]
                return set(found) if all(found.count(n) == 4 for n in found) else None

            # A commit in progress at that time goes on when the cluster has come up.
            there = until("no transaction is there in part", numbers, 60)
            assert set(range(20)) <= there and len(there) < 30
            shards = client.t.command("collStats", "c")["shards"]
            assert all(shards[name]["count"] > 0 for name in ("s0", "s1"))
            client.t.c.insert_one({"_id": "new"})


def test_a_router_that_dies_while_it_locks_leaves_nothing_locked(tmp_path):
    """The second shard stands still, so that the router dies between the locks of the first and of the others."""
    with at_rest(tmp_path) as cluster:
        stopped = cluster.shards["s1"]
        stopped.process.send_signal(signal.SIGSTOP)
        backup = subprocess.Popen(
            [BINARY, "backup", f"mongodb://{cluster.routers[0].address}/", tmp_path / "archive"], stderr=subprocess.DEVNULL
        )
        try:
            with cluster.on_shard("s0") as client:
                until("the first is locked", lambda: client.admin.command("currentOp").get("fsyncLock"))
                cluster.routers[0].kill()
                stopped.process.send_signal(signal.SIGCONT)
                # Writes wait for the end of the hold, after thirty seconds, and are done then by themselves.
                client.d.c.insert_one({"_id": 1})
                assert not client.admin.command("currentOp").get("fsyncLock")
            with cluster.on_shard("s1") as client:
                client.d.c.insert_one({"_id": 1})
        finally:
            stopped.process.send_signal(signal.SIGCONT)
            backup.kill()
            backup.wait()
