"""Debezium's MongoDB connector, unmodified: a snapshot, then what changes, on and on over restarts of both sides.

scripts/consumers.sh builds the program around it (tests/consumers/debezium).
"""

import json
import pathlib
import queue
import subprocess
import threading

import pytest

ROOM = pathlib.Path(__file__).parent / "debezium" / "target"
if not (ROOM / "classes").exists():
    pytest.skip("the connector is not built", allow_module_level=True)


class Connector:
    """Runs until it leaves the `with`; `next()` is the next event, in short."""

    def __init__(self, server, tmp_path, mode):
        uri = f"mongodb://{server.address}/?replicaSet=rs0"
        self.command = ["java", "-cp", f"{ROOM}/classes:{ROOM}/lib/*", "Connector", uri, str(tmp_path / "offsets"), mode]
        self.log = tmp_path / "connector.log"
        self.events = queue.Queue()

    def __enter__(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.reader.join()

    def read(self):
        for line in self.process.stdout:
            if line.startswith(b"{"):
                self.events.put(json.loads(line))

    def next(self, timeout_s=60):
        try:
            event = self.events.get(timeout=timeout_s)
        except queue.Empty:
            pytest.fail(f"no event came: {self.log.read_text()[-2000:]}")
        of = {name: json.loads(event[name]) if event[name] else None for name in ["before", "after"]}
        return event["op"], event["source"]["collection"], of["before"], of["after"]


def test_snapshot_stream_restart(new_server, tmp_path):
    server = new_server()
    mode = "change_streams_update_full_with_pre_image"
    with server.client() as client:
        shop = client.shop
        shop.create_collection("things", changeStreamPreAndPostImages={"enabled": True})
        shop.things.insert_many([{"_id": i, "n": i} for i in range(20)])
        with Connector(server, tmp_path, mode) as connector:
            snapshot = [connector.next() for _ in range(20)]
            assert sorted(e[3]["_id"] for e in snapshot) == list(range(20)) and {e[0] for e in snapshot} == {"r"}
            shop.things.insert_one({"_id": 100})
            shop.things.update_one({"_id": 1}, {"$set": {"n": "x"}, "$unset": {"m": 1}})
            shop.things.replace_one({"_id": 2}, {"r": 1})
            shop.things.delete_one({"_id": 3})
            with client.start_session() as session, session.start_transaction():
                shop.things.insert_one({"_id": "t"}, session=session)
                shop.other.insert_one({"_id": "t"}, session=session)
            assert [connector.next() for _ in range(6)] == [
                ("c", "things", None, {"_id": 100}),
                ("u", "things", {"_id": 1, "n": 1}, {"_id": 1, "n": "x"}),
                ("u", "things", {"_id": 2, "n": 2}, {"_id": 2, "r": 1}),
                ("d", "things", {"_id": 3, "n": 3}, None),
                ("c", "things", None, {"_id": "t"}),
                ("c", "other", None, {"_id": "t"}),
            ]
        shop.things.insert_one({"_id": "while it was away"})
    with Connector(server, tmp_path, mode) as connector:
        assert connector.next() == ("c", "things", None, {"_id": "while it was away"})
        # The server goes, the connector stays and goes on where it was.
        server.kill()
        server.start()
        with server.client() as client:
            client.shop.things.insert_one({"_id": "after the restart"})
        assert connector.next(120) == ("c", "things", None, {"_id": "after the restart"})
        assert connector.events.empty()
