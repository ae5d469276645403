"""`pando backup`, `pando restore` and `pando oplog`: the past of a server, looked at and gone back to."""

import datetime
import json
import os
import shutil
import time

from bson import json_util
from harness import pando, until
from pymongo import WriteConcern
from test_backup_archive import newest


def backup(server, path):
    pando("backup", f"mongodb://{server.address}/", path, "--in-place")
    return path


def contents(new_server, path):
    server = new_server(path=path)
    with server.client() as client:
        found = {c: sorted(d["_id"] for d in client.test[c].find()) for c in client.test.list_collection_names()}
        assert all(client.test.command("validate", c)["valid"] for c in found)
        assert all(client.test[c].count_documents({}) == len(ids) for c, ids in found.items())
    server.stop()
    return found


def test_any_moment_behind_a_backup(new_server, tmp_path):
    server = new_server()
    moments = []
    with server.client(w="majority") as client:
        coll = client.test.c
        coll.insert_many([{"_id": i, "n": 0} for i in range(3)])
        before = newest(client)
        second = int(before.split(":")[0])
        until("the clock of the log has gone on", lambda: int(time.time()) > second)
        coll.insert_one({"_id": 3})
        base = backup(server, tmp_path / "base")
        for i in range(4, 8):
            coll.insert_one({"_id": i})
            moments.append((newest(client), list(range(i + 1))))
        noon = datetime.datetime.now(datetime.timezone.utc)
        until("the clock has gone on", lambda: datetime.datetime.now(datetime.timezone.utc) - noon > datetime.timedelta(milliseconds=2))
        coll.create_index("n")
        coll.insert_many([{"_id": i} for i in range(8, 20)])
        after_batch = newest(client)
        with client.start_session() as s, s.start_transaction():
            coll.delete_one({"_id": 0}, session=s)
            client.test.other.insert_one({"_id": "t"}, session=s)
        after_commit = newest(client)
        coll.drop()
        end = newest(client)

    def restored(until, *more):
        place = tmp_path / f"restored-{until}"
        pando("restore", base, place, "--until", until, *more)
        assert not os.path.exists(f"{place}.restoring")
        return contents(new_server, place)

    for moment, ids in moments[::3]:
        assert restored(moment) == {"c": ids}
    assert restored(noon.isoformat())["c"] == list(range(8))
    # Between the timestamps of two entries: a batch and a transaction are there as a whole or not at all.
    seconds, increment = after_batch.split(":")
    assert restored(after_batch)["c"] == list(range(20))
    assert restored(f"{seconds}:{int(increment) - 1}")["c"] == list(range(8))
    assert restored(after_commit) == {"c": list(range(1, 20)), "other": ["t"]}
    assert restored(end) == {"other": ["t"]}
    # Without a moment all of the log, here of a copy of it.
    shutil.copytree(server.path / "log", tmp_path / "kept")
    pando("restore", base, tmp_path / "all", "--log", tmp_path / "kept")
    assert contents(new_server, tmp_path / "all") == {"other": ["t"]}

    def refused(*words, says):
        target = tmp_path / "refused"
        said = pando("restore", base, target, *words, code=1)
        assert says in said and not target.exists() and not os.path.exists(f"{target}.restoring"), said

    refused("--until", before, says="the backup was complete only at")
    refused("--until", "2020-01-01T00:00:00Z", says="the backup was complete only at")
    refused("--until", "2100-01-01T00:00:00Z", says="the log ends at")
    refused("--until", "4102444800:1", says="the log ends at")
    refused("--log", tmp_path / "nowhere", says="there is no log in")
    said = pando("restore", base, server.path, code=1)
    assert "exists already" in said
    assert "is no moment" in pando("restore", base, tmp_path / "x", "--until", "soon", code=2)
    assert "is no backup" in pando("restore", server.path, tmp_path / "x", code=1)


def test_a_gap_and_other_logs(new_server, tmp_path):
    server = new_server("--log-retain", 1)
    other = new_server(path=tmp_path / "other")
    with server.client() as client, other.client() as stranger:
        client.test.c.insert_one({"_id": 0})
        base = backup(server, tmp_path / "base")
        for i in range(150):
            client.test.c.insert_one({"_id": i + 1, "fill": "x" * 20_000})
            stranger.test.c.insert_one({"_id": i})
        first = server.path / "log" / "00000000000000000001.log"
        until("the first segment goes", lambda: client.admin.command("fsync") and not first.exists())
    said = pando("restore", base, tmp_path / "x", code=1)
    assert "there is a gap" in said
    said = pando("restore", base, tmp_path / "x", "--log", other.path, code=1)
    assert "the log of another server" in said
    assert not (tmp_path / "x").exists()
    # Once it was started it has a history of its own.
    contents(new_server, base)
    assert "a server was started in" in pando("restore", base, tmp_path / "x", code=1)


def test_damage_in_the_log(new_server, tmp_path):
    server = new_server()
    with server.client() as client:
        base = backup(server, tmp_path / "base")
        for i in range(50):
            client.test.c.with_options(write_concern=WriteConcern(j=True)).insert_one({"_id": i})
        end = newest(client)
    server.kill()
    segment = sorted((server.path / "log").iterdir())[-1]
    raw = bytearray(segment.read_bytes())
    # Behind the last entry zeros are reserved.
    raw[len(raw.rstrip(b"\0")) // 2] ^= 0xFF
    segment.write_bytes(raw)
    said = pando("restore", base, tmp_path / "x", "--until", end, code=1)
    assert segment.name in said and not (tmp_path / "x").exists()


def test_the_log_read_by_a_person(new_server):
    server = new_server()
    with server.client(w="majority") as client:
        shop = client.shop
        shop.orders.insert_one({"_id": 1, "n": 1})
        first = newest(client)
        shop.orders.update_one({"_id": 1}, {"$inc": {"n": 1}})
        client.other.c.insert_one({"_id": 2})
        shop.create_collection("empty")
        with client.start_session() as s, s.start_transaction():
            shop.orders.delete_one({"_id": 1}, session=s)
            client.other.c.delete_one({"_id": 2}, session=s)
        want = list(client.local["oplog.rs"].find())
        uri = f"mongodb://{server.address}/"
        for source in (server.path, server.path / "log", uri):
            lines = [json_util.loads(line) for line in pando("oplog", source).splitlines()]
            assert [d["ts"] for d in lines] == [d["ts"] for d in want]
            assert [d["op"] for d in lines] == [d["op"] for d in want]

            def ops(*words):
                return [json.loads(line)["op"] for line in pando("oplog", source, *words).splitlines()]

            assert ops("--ns", "shop.orders", "--from", first) == ["i", "u", "c"]
            assert ops("--ns", "shop.empty") == ["c"]
            assert ops("--ns", "other", "--limit", 1) == ["c"]
            assert ops("--until", first, "--ns", "shop.orders") == ["c", "i"]
            assert ops("--from", "2100-01-01T00:00:00Z") == []
    said = pando("oplog", uri.replace(str(server.port), "1"), code=1)
    assert "cannot show the log" in said
    assert "wants a data directory or a server" in pando("oplog", code=2)
