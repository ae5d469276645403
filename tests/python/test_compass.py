"""What Compass asks: when it connects, for its list of databases, and in the tabs of a collection."""

import pytest

from harness import refuses


@pytest.fixture
def shop(db):
    db.items.insert_many([{"_id": i, "name": f"item {i}", "tags": ["a", i], "box": {"w": i}} for i in range(200)])
    db.items.create_index("name")
    db.create_collection("log", capped=True, size=4096)
    db.create_collection("heavy", viewOn="items", pipeline=[{"$match": {"box.w": {"$gt": 100}}}])
    return db


def test_connecting(client):
    """An error of the first two other than 'not authorized' ends Compass's connection."""
    admin = client.admin
    status = admin.command("connectionStatus", showPrivileges=True)["authInfo"]
    assert status == {"authenticatedUsers": [], "authenticatedUserRoles": [], "authenticatedUserPrivileges": []}
    host = admin.command("hostInfo")
    assert host["system"]["numCores"] > 0 and host["system"]["memSizeMB"] > 0 and host["os"]["type"] == "Linux"
    build = admin.command("buildInfo")
    assert build["version"] == ".".join(str(n) for n in build["versionArray"][:3]) and build["modules"] == []
    version = admin.command("getParameter", 1, featureCompatibilityVersion=1)["featureCompatibilityVersion"]
    assert version["version"] == "8.0"
    assert "parsed" in admin.command("getCmdLineOpts")
    with refuses(59, "CommandNotFound"):
        admin.command("atlasVersion")


def test_list_of_databases(client, shop):
    listed = client.admin.command("listDatabases", 1, nameOnly=True)
    assert {"name": shop.name} in listed["databases"] and "totalSize" not in listed
    stats = shop.command("dbStats", scale=1)
    assert (stats["db"], stats["collections"], stats["views"], stats["objects"]) == (shop.name, 3, 1, 201)
    assert stats["storageSize"] >= 0 and stats["indexes"] >= 3


def test_list_of_collections(shop):
    def listed(**more):
        return {c["name"]: c for c in shop.command("listCollections", 1, filter={}, **more)["cursor"]["firstBatch"]}

    names = listed(nameOnly=True, authorizedCollections=True)
    assert {n: names[n] for n in ("items", "heavy")} == {
        "items": {"name": "items", "type": "collection"},
        "heavy": {"name": "heavy", "type": "view"},
    }
    whole = listed(nameOnly=False)
    assert whole["heavy"]["options"]["viewOn"] == "items" and whole["heavy"]["info"]["readOnly"] is True
    assert whole["log"]["options"]["capped"] is True and whole["items"]["idIndex"]["name"] == "_id_"


def test_sizes_of_a_collection(shop):
    """As Compass computes them, with one pipeline that also runs on shards."""
    number = {n: {"$sum": {"$toDouble": f"$storageStats.{n}"}} for n in ("size", "storageSize", "totalIndexSize", "freeStorageSize")}
    pipeline = [
        {"$collStats": {"storageStats": {}}},
        {"$group": {
            "_id": None,
            "capped": {"$first": "$storageStats.capped"},
            "count": {"$sum": "$storageStats.count"},
            **number,
            "unscaledCollSize": {"$sum": {"$multiply": [
                {"$toDouble": "$storageStats.avgObjSize"}, {"$toDouble": "$storageStats.count"},
            ]}},
            "nindexes": {"$max": "$storageStats.nindexes"},
        }},
        {"$addFields": {"avgObjSize": {"$cond": {
            "if": {"$eq": ["$count", 0]}, "then": 0, "else": {"$divide": ["$unscaledCollSize", {"$toDouble": "$count"}]},
        }}}},
    ]
    [items] = shop.items.aggregate(pipeline)
    assert (items["count"], items["nindexes"], items["capped"]) == (200, 2, False)
    assert items["size"] > 200 * 50 and 50 < items["avgObjSize"] < 200
    [log] = shop.log.aggregate(pipeline)
    assert (log["count"], log["avgObjSize"], log["capped"]) == (0, 0, True)
    with refuses(166):
        list(shop.heavy.aggregate(pipeline))
    assert shop.items.estimated_document_count(maxTimeMS=5000) == 200


def test_indexes_tab(shop):
    usage = {s["name"]: s for s in shop.items.aggregate([{"$indexStats": {}}, {"$project": {"name": 1, "accesses": 1, "host": 1}}])}
    assert set(usage) == {"_id_", "name_1"} and usage["name_1"]["accesses"]["ops"] == 0
    assert len(list(shop.items.find({"name": "item 5"}))) == 1
    usage = {s["name"]: s["accesses"]["ops"] for s in shop.items.aggregate([{"$indexStats": {}}])}
    assert usage["name_1"] >= 1
    sizes = shop.command("collStats", "items")["indexSizes"]
    assert set(sizes) == {"_id_", "name_1"}
    # How it finds out that there are search indexes to be made.
    assert list(shop.items.aggregate([{"$listSearchIndexes": {}}])) == []


def test_schema_tab(shop):
    for source, there in (shop.items, 200), (shop.heavy, 99), (shop.log, 0):
        found = list(source.aggregate([{"$match": {}}, {"$sample": {"size": 50}}], allowDiskUse=True, maxTimeMS=10_000))
        assert len({d["_id"] for d in found}) == len(found) == min(50, there)
    chosen = list(shop.items.aggregate([{"$match": {"box.w": {"$lt": 20}}}, {"$sample": {"size": 1000}}, {"$project": {"box": 1}}]))
    assert sorted(d["box"]["w"] for d in chosen) == list(range(20))


def test_performance_tab(client, shop):
    admin = client.admin
    totals = admin.command("top")["totals"]
    assert totals[f"{shop.name}.items"]["insert"]["count"] >= 1
    status = admin.command("serverStatus")
    assert {"opcounters", "network", "globalLock", "mem", "connections"} <= set(status)
    running = list(admin.aggregate([{"$currentOp": {"allUsers": True, "idleConnections": False}}]))
    assert any(op.get("command", {}).get("aggregate") == 1 for op in running)
