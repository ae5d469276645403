"""Monstache, unmodified: the documents of the database, and their changes, arrive at Elasticsearch.

The program is `MONSTACHE_BIN`; scripts/consumers.sh builds it.
"""

import os
import subprocess

import pytest

from elasticsearch import StandIn
from harness import until

BINARY = os.environ.get("MONSTACHE_BIN")
if not BINARY:
    pytest.skip("MONSTACHE_BIN names no program", allow_module_level=True)

# By change streams, gone on by time or by token; or by the oplog, the way of old.
MODES = {
    "streams by time": 'change-stream-namespaces = [""]\nresume-strategy = 0',
    "streams by token": 'change-stream-namespaces = [""]\nresume-strategy = 1',
    "oplog": "enable-oplog = true",
}


class Monstache:
    def __init__(self, server, sink, tmp_path, mode):
        self.log = tmp_path / "monstache.log"
        self.config = tmp_path / "monstache.toml"
        self.config.write_text(
            f'mongo-url = "mongodb://{server.address}/?replicaSet=rs0"\nelasticsearch-urls = ["{sink.url}"]\n'
            f'elasticsearch-max-seconds = 1\nresume = true\ndirect-read-namespaces = ["shop.things"]\n{MODES[mode]}\n'
        )

    def __enter__(self):
        with open(self.log, "ab") as out:
            self.process = subprocess.Popen([BINARY, "-f", str(self.config)], stdout=out, stderr=out)
        return self

    def __exit__(self, *_):
        # A clean end saves how far it came.
        self.process.terminate()
        self.process.wait(timeout=30)


@pytest.mark.parametrize("mode", MODES)
def test_what_changes_arrives(new_server, tmp_path, mode):
    server = new_server()
    with server.client() as client, StandIn() as sink:
        shop = client.shop
        shop.things.insert_many([{"_id": i, "n": i} for i in range(100)])

        def there(what, holds):
            until(f"{what}; see {tmp_path}/monstache.log", lambda: holds(sink.documents("shop.things")), timeout_s=60)

        with Monstache(server, sink, tmp_path, mode):
            there("the documents", lambda d: len(d) == 100 and d["42"] == {"n": 42})
            shop.things.insert_one({"_id": "new", "at": "once"})
            there("news", lambda d: d.get("new") == {"at": "once"})
            shop.things.delete_one({"_id": 3})
            shop.things.replace_one({"_id": 2}, {"replaced": True})
            there("a delete and a replacement", lambda d: "3" not in d and d["2"] == {"replaced": True})
            if mode != "oplog":
                changes_of_streams(client, there)
            until("its place is kept", lambda: client.monstache.list_collection_names(), timeout_s=60)
        shop.things.insert_one({"_id": "while it was away"})
        with Monstache(server, sink, tmp_path, mode):
            there("what came while it was away", lambda d: "while it was away" in d)
            shop.things.drop()
            there("the drop", lambda d: not d)


def changes_of_streams(client, there):
    """What Monstache does not read from the oplog of a MongoDB of today: updates, batches, transactions."""
    things = client.shop.things
    things.update_one({"_id": 1}, {"$set": {"n": "changed"}})
    things.insert_many([{"_id": f"batch {i}"} for i in range(50)])
    with client.start_session() as session, session.start_transaction():
        things.insert_one({"_id": "t"}, session=session)
        things.update_one({"_id": 4}, {"$set": {"t": True}}, session=session)
        things.delete_one({"_id": 5}, session=session)
    there(
        "an update, a batch, a transaction",
        lambda d: d["1"] == {"n": "changed"} and "batch 49" in d and "t" in d and d["4"] == {"n": 4, "t": True} and "5" not in d,
    )
