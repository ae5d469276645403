"""`pando schema` and the command `pandoSchema`: the shape of documents as they are."""

import json

import pytest
from bson import ObjectId

from harness import refuses, run_pando


def schema(db, coll, **options):
    reply = db.command("pandoSchema", coll, **options)
    return reply, {f["path"]: f for f in reply["fields"]}


def run_schema(*words):
    return run_pando("schema", *words)


@pytest.fixture
def orders(db):
    db.orders.insert_many(
        [
            {
                "_id": ObjectId(),
                "status": "new" if i % 4 else "paid",
                "total": i if i % 2 else float(i),
                "items": [{"qty": n, "sku": f"s{n}"} for n in range(i % 3)],
                **({"note": None} if i % 10 == 0 else {}),
            }
            for i in range(100)
        ]
    )
    db.orders.create_index([("status", 1), ("total", -1)])
    db.orders.create_index("items.qty")
    return db


def test_fields_types_shares_and_indexes(orders):
    reply, fields = schema(orders, "orders")
    assert (reply["documents"], reply["sampled"], reply["complete"], reply["truncated"]) == (100, 100, True, False)
    assert set(fields) == {"_id", "status", "total", "items", "items[]", "items[].qty", "items[].sku", "note"}
    assert fields["note"]["share"] == 0.1 and fields["note"]["types"] == [{"type": "null", "count": 10, "share": 1.0}]
    assert {t["type"]: t["count"] for t in fields["total"]["types"]} == {"int": 50, "double": 50}
    assert fields["items"]["elements"] == {"least": 0, "most": 2, "average": 0.99}
    assert fields["items[].qty"]["documents"] == 66 and fields["items[].qty"]["examples"] == [0, 1]
    assert sorted(fields["status"]["examples"]) == ["new", "paid"]
    assert fields["_id"]["indexes"] == [{"name": "_id_", "position": 0}]
    assert fields["status"]["indexes"] == [{"name": "status_1_total_-1", "position": 0}]
    assert fields["total"]["indexes"] == [{"name": "status_1_total_-1", "position": 1}]
    assert fields["items[].qty"]["indexes"] == [{"name": "items.qty_1", "position": 0}]
    assert fields["note"]["indexes"] == []


def test_samples_and_filters(orders):
    reply, fields = schema(orders, "orders", sampleSize=10)
    assert (reply["sampled"], reply["complete"]) == (10, False) and fields["status"]["documents"] == 10
    reply, fields = schema(orders, "orders", filter={"status": "paid"}, examples=1)
    assert reply["sampled"] == 25 and fields["status"]["examples"] == ["paid"]
    reply, fields = schema(orders, "orders", maxFields=3)
    assert len(fields) == 3 and reply["truncated"] is True


def test_keys_that_are_data(db):
    db.c.insert_many([{"by_user": {f"u{i * 50 + j}": {"n": j} for j in range(50)}} for i in range(40)])
    reply, fields = schema(db, "c")
    assert reply["truncated"] is False and len(fields) < 250
    assert fields["by_user.*.n"]["types"] == [{"type": "int", "count": 1900, "share": 1.0}]


def test_errors(db):
    with refuses(26):
        db.command("pandoSchema", "missing")
    db.c.insert_one({})
    for options, code in [({"sampleSize": 0}, 2), ({"nope": 1}, 40415), ({"filter": {"$nope": 1}}, 2), ({"sampleSize": "x"}, 14)]:
        with refuses(code):
            db.command("pandoSchema", "c", **options)


def test_as_a_table_and_as_json(orders, server):
    done = run_schema(f"mongodb://{server.address}", f"{orders.name}.orders")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"{orders.name}.orders: 100 documents, 100 looked at"
    (status,) = [l.split() for l in lines if l.startswith("status")]
    assert status[:3] == ["status", "100%", "string"] and status[-1] == "status_1_total_-1"
    (total,) = [l for l in lines if l.startswith("total")]
    assert "int 50%, double 50%" in total or "double 50%, int 50%" in total
    assert total.endswith("(status_1_total_-1)")
    done = run_schema(server.address, f"{orders.name}.orders", "--json", "--sample", 7)
    assert json.loads(done.stdout)["sampled"] == 7


def test_wrong_uses_of_the_program(server, db):
    for words, code in [
        ([], 2),
        (["nodot"], 2),
        (["a.b", "--nope"], 2),
        (["mysql://h", "a.b"], 2),
        (["mongodb://127.0.0.1:1", "a.b"], 1),
        ([f"mongodb://{server.address}", f"{db.name}.missing"], 1),
    ]:
        done = run_schema(*words)
        assert done.returncode == code and done.stdout == "", (words, done)
        assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("pando schema: "), done.stderr
    assert run_schema("--help").returncode == 0
