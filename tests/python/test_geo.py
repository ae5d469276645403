"""Geospatial queries and indexes: against formulas of the test's own, with and without an index; refusals; the documents read."""

import math
import random

import pytest
from bson import SON
from pymongo.errors import BulkWriteError

from harness import refuses

EARTH = 6378100.0
SEED = 20261124


def point(lng, lat):
    return {"type": "Point", "coordinates": [lng, lat]}


def polygon(*rings):
    return {"type": "Polygon", "coordinates": [[*ring, ring[0]] for ring in rings]}


def square(x, y, size):
    return [[x, y], [x + size, y], [x + size, y + size], [x, y + size]]


def angle(a, b):
    """The angle between two places, in radians (the haversine)."""
    (x1, y1), (x2, y2) = [[math.radians(v) for v in p] for p in (a, b)]
    h = math.sin((y2 - y1) / 2) ** 2 + math.cos(y1) * math.cos(y2) * math.sin((x2 - x1) / 2) ** 2
    return 2 * math.asin(min(1, math.sqrt(h)))


def fails(code, call):
    with refuses(code):
        call()


def stats(explained):
    return explained["executionStats"]


def explain(coll, command):
    return coll.database.command("explain", SON(command), verbosity="executionStats")


def stages(plan):
    out = [plan["stage"]]
    for inner in [plan.get("inputStage"), *plan.get("inputStages", [])]:
        out += stages(inner) if inner else []
    return out


def ids(found):
    return [d["_id"] for d in found]


@pytest.fixture(scope="module")
def places(client):
    """20,000 places all over the earth, poles and the date line among them, in one collection with indexes and one without."""
    rng = random.Random(SEED)
    all_places = []
    for i in range(20000):
        lng, lat = rng.uniform(-180, 180), math.degrees(math.asin(rng.uniform(-1, 1)))
        if i % 100 == 0:
            lat = rng.choice([90, -90, lat])
        if i % 100 == 1:
            lng = rng.choice([180, -180])
        all_places.append((lng, lat))
    db = client["test_geo_places"]
    docs = [{"_id": i, "at": point(*p), "flat": list(p), "n": i % 10} for i, p in enumerate(all_places)]
    for name in ["bare", "indexed"]:
        db[name].insert_many(docs)
    db.indexed.create_index([("at", "2dsphere")])
    db.indexed.create_index([("flat", "2d")])
    yield db, all_places
    client.drop_database(db.name)


class TestAgainstFormulas:
    """Each query is compared with a formula's answer for each of the 20,000 places."""

    compared = {"bare": 0, "indexed": 0}

    def equal(self, coll, query, want):
        assert sorted(ids(coll.find(query, {"_id": 1}))) == want, query
        self.compared[coll.name] += 20000

    def test_circles(self, places):
        db, all_places = places
        rng = random.Random(SEED + 1)
        for center in [(0, 0), (180, 0), (-180, 10), (0, 90), (50, -90), *((rng.uniform(-180, 180), rng.uniform(-90, 90)) for _ in range(10))]:
            radius = rng.uniform(0.01, 0.5)
            want = [i for i, p in enumerate(all_places) if angle(center, p) <= radius]
            for field in ["at", "flat"]:
                query = {field: {"$geoWithin": {"$centerSphere": [list(center), radius]}}}
                for coll in [db.bare, db.indexed]:
                    self.equal(coll, query, want)
        print("answers equal to the formulas':", self.compared)
        assert min(self.compared.values()) >= 600_000

    def test_near_in_order(self, places):
        db, all_places = places
        rng = random.Random(SEED + 2)
        for center in [(0, 0), (180, 0), (0, 90), (-20, -90), *((rng.uniform(-180, 180), rng.uniform(-90, 90)) for _ in range(6))]:
            order = sorted(range(len(all_places)), key=lambda i: angle(center, all_places[i]))
            found = list(db.indexed.aggregate([{"$geoNear": {"near": point(*center), "distanceField": "d", "key": "at"}}, {"$limit": 300}]))
            assert [d["d"] for d in found] == sorted(d["d"] for d in found)
            for d, i in zip(found, order):
                assert math.isclose(d["d"], EARTH * angle(center, all_places[i]), rel_tol=1e-9, abs_tol=1e-3), center
                assert math.isclose(d["d"], EARTH * angle(center, all_places[d["_id"]]), rel_tol=1e-9, abs_tol=1e-3)
            low, high = [EARTH * angle(center, all_places[order[n]]) + 0.5 for n in (100, 200)]
            query = {"at": {"$nearSphere": {"$geometry": point(*center), "$minDistance": low, "$maxDistance": high}}}
            want = [i for i, p in enumerate(all_places) if low <= EARTH * angle(center, p) <= high]
            assert sorted(ids(db.indexed.find(query))) == want and len(want) > 50

    def test_near_on_the_plane(self, places):
        db, all_places = places
        order = sorted(range(len(all_places)), key=lambda i: math.dist((10, 20), all_places[i]))
        assert ids(db.indexed.find({"flat": {"$near": [10, 20]}}).limit(50)) == order[:50]
        limit = math.dist((10, 20), all_places[order[70]])
        assert ids(db.indexed.find({"flat": {"$near": [10, 20], "$maxDistance": limit * 1.000001}})) == order[:71]
        radians = sorted(range(len(all_places)), key=lambda i: angle((10, 20), all_places[i]))
        assert ids(db.indexed.find({"flat": {"$nearSphere": [10, 20]}}).hint("flat_2d").limit(50)) == radians[:50]

    def test_polygons_and_boxes(self, places):
        db, all_places = places
        for x, y in [(-10, -20), (100, 40), (-60, 5)]:
            want = [i for i, (a, b) in enumerate(all_places) if x <= a <= x + 30 and y <= b <= y + 25]
            box = {"$box": [[x, y], [x + 30, y + 25]]}
            corners = {"$polygon": [[x, y], [x + 30, y], [x + 30, y + 25], [x, y + 25]]}
            for shape in [box, corners]:
                for coll in [db.bare, db.indexed]:
                    self.equal(coll, {"flat": {"$geoWithin": shape}}, want)
            # On the sphere: with and without an index alike, and not far from the plane's.
            shape = {"$geometry": polygon(square(x, y, 10), square(x + 2, y + 2, 3)[::-1])}
            bare, indexed = [sorted(ids(c.find({"at": {"$geoWithin": shape}}))) for c in (db.bare, db.indexed)]
            assert bare == indexed and len(bare) > 5


class TestWhatIsRead:
    def test_neighbours_come_as_they_are_asked_for(self, places):
        db, _ = places
        for query in [{"at": {"$near": {"$geometry": point(7, 50)}}}, {"flat": {"$near": [7, 50]}}, {"at": {"$nearSphere": [7, 50]}}]:
            told = stats(explain(db.indexed, {"find": "indexed", "filter": query, "limit": 10}))
            assert told["nReturned"] == 10 and told["totalDocsExamined"] <= 20, query
            assert told["totalKeysExamined"] <= 800, query

    def test_a_circle_reads_little_more_than_it_holds(self, places):
        db, all_places = places
        by_angle = sorted(angle((12, 48), p) for p in all_places)
        query = {"at": {"$geoWithin": {"$centerSphere": [[12, 48], by_angle[1000]]}}}
        told = stats(explain(db.indexed, {"find": "indexed", "filter": query}))
        assert told["nReturned"] in (1000, 1001) and told["totalDocsExamined"] <= 1500

    def test_stages(self, places):
        db, _ = places
        for query, stage in [
            ({"at": {"$near": {"$geometry": point(7, 50)}}}, "GEO_NEAR_2DSPHERE"),
            ({"flat": {"$near": [7, 50]}}, "GEO_NEAR_2D"),
            ({"at": {"$geoWithin": {"$geometry": polygon(square(0, 0, 1))}}}, "IXSCAN"),
            ({"flat": {"$geoWithin": {"$box": [[0, 0], [1, 1]]}}}, "IXSCAN"),
        ]:
            plan = db.command("explain", {"find": "indexed", "filter": query})["queryPlanner"]["winningPlan"]
            assert stage in stages(plan), (query, plan)


class TestWhereNearMayStand:
    def test_commands(self, coll):
        coll.create_index([("kind", 1), ("at", "2dsphere")])
        coll.create_index([("at", "2dsphere")])
        coll.insert_many([{"_id": i, "at": point(i, 0), "kind": i % 2} for i in range(20)])
        near = {"at": {"$near": {"$geometry": point(0, 0)}}}
        assert ids(coll.find(near)) == list(range(20))
        assert ids(coll.find({**near, "kind": 1}).limit(3)) == [1, 3, 5]
        assert ids(coll.find(near).sort("_id", -1).limit(2)) == [19, 18]
        assert ids(coll.find(near).skip(3).limit(2)) == [3, 4]
        assert ids(coll.find(near, batch_size=3)) == list(range(20))
        assert coll.database.command("count", coll.name, query={"at": {"$near": {"$geometry": point(0, 0), "$maxDistance": 300000}}})["n"] == 3
        assert sorted(coll.distinct("_id", {"at": {"$near": {"$geometry": point(0, 0), "$maxDistance": 300000}}})) == [0, 1, 2]
        coll.update_one({"at": {"$near": {"$geometry": point(5.1, 0)}}}, {"$set": {"hit": 1}})
        assert coll.find_one({"hit": 1})["_id"] == 5
        assert coll.find_one_and_delete({"at": {"$near": {"$geometry": point(5.1, 0)}}})["_id"] == 5
        coll.delete_one({"at": {"$near": {"$geometry": point(5.1, 0)}}})
        assert coll.find_one({"_id": 6}) or coll.find_one({"_id": 4})
        assert coll.count_documents({}) == 18
        told = stats(explain(coll, {"find": coll.name, "filter": {**near, "kind": 1}, "limit": 3}))
        assert told["totalDocsExamined"] <= 5

    def test_metadata(self, coll):
        coll.create_index([("at", "2dsphere")])
        coll.insert_many([{"_id": i, "at": point(i, 0)} for i in range(3)])
        near = {"at": {"$near": {"$geometry": point(0, 0)}}}
        found = list(coll.find(near, {"d": {"$meta": "geoNearDistance"}, "p": {"$meta": "geoNearPoint"}, "at": 0}))
        assert [round(d["d"]) for d in found] == [0, 111319, 222638]
        assert [d["p"] for d in found] == [point(i, 0) for i in range(3)] and "at" not in found[0]
        found = list(coll.aggregate([{"$geoNear": {"near": point(0, 0)}}, {"$set": {"d": {"$meta": "geoNearDistance"}}}, {"$skip": 1}]))
        assert [set(d) for d in found] == [{"_id", "at", "d"}] * 2
        fails(40218, lambda: list(coll.find({}, {"d": {"$meta": "geoNearDistance"}})))

    def test_inside_of_other_pipelines(self, coll):
        coll.create_index([("at", "2dsphere")])
        coll.insert_many([{"_id": i, "at": point(i, 0)} for i in range(10)])
        other = coll.database["other"]
        other.insert_many([{"_id": i, "w": point(i, 0)} for i in (2, 7)])
        near = lambda p: {"$geoNear": {"near": p, "distanceField": "d", "maxDistance": 120000}}
        lookup = {"from": coll.name, "let": {"w": "$w"}, "pipeline": [near("$$w"), {"$project": {"d": 1}}], "as": "n"}
        found = list(other.aggregate([{"$lookup": lookup}, {"$sort": {"_id": 1}}]))
        assert [sorted(ids(d["n"])) for d in found] == [[1, 2, 3], [6, 7, 8]] and found[0]["n"][0] == {"_id": 2, "d": 0}
        union = {"coll": coll.name, "pipeline": [near(point(5, 0)), {"$limit": 1}]}
        assert ids(other.aggregate([{"$unionWith": union}])) == [2, 7, 5]

    def test_a_transaction_sees_its_own(self, coll):
        coll.create_index([("at", "2dsphere")])
        coll.insert_many([{"_id": i, "at": point(i, 0)} for i in range(3)])
        near = {"at": {"$near": {"$geometry": point(0.4, 0)}}}
        with coll.database.client.start_session() as session, session.start_transaction():
            coll.insert_one({"_id": 9, "at": point(0.5, 0)}, session=session)
            assert ids(coll.find(near, session=session)) == [9, 0, 1, 2]
            assert ids(coll.find(near)) == [0, 1, 2]
            session.abort_transaction()
        assert ids(coll.find(near)) == [0, 1, 2]

    def test_each_once_over_many_batches(self, coll):
        coll.create_index([("area", "2dsphere")])
        coll.create_index([("flat", "2d")])
        areas = [polygon(square(i % 100, 0, 3)) for i in range(500)]
        coll.insert_many([{"_id": i, "area": a, "flat": [i % 60, i % 77]} for i, a in enumerate(areas)])
        for query in [{"area": {"$near": {"$geometry": point(50, 1)}}}, {"flat": {"$near": [10, 10]}}]:
            assert sorted(ids(coll.find(query, batch_size=40))) == list(range(500))

    def test_a_view(self, coll):
        coll.create_index([("at", "2dsphere")])
        coll.insert_many([{"_id": i, "at": point(i, 0)} for i in range(5)])
        db = coll.database
        db.create_collection("nearest", viewOn=coll.name, pipeline=[{"$geoNear": {"near": point(4, 0), "distanceField": "d"}}])
        assert ids(db.nearest.find({}, {"d": 0})) == [4, 3, 2, 1, 0]
        db.create_collection("same", viewOn=coll.name, pipeline=[])
        assert ids(db.same.find({"at": {"$geoWithin": {"$centerSphere": [[0, 0], 0.02]}}})) == [0, 1]
        assert ids(db.same.aggregate([{"$geoNear": {"near": point(4, 0), "distanceField": "d"}}])) == [4, 3, 2, 1, 0]
        db.create_collection("some", viewOn=coll.name, pipeline=[{"$match": {"_id": 1}}])
        fails(40603, lambda: list(db.some.aggregate([{"$geoNear": {"near": point(4, 0)}}])))

    def test_arrays_and_shapes(self, coll):
        coll.create_index([("stops.at", "2dsphere"), ("n", 1)])
        coll.create_index([("flat", "2d")])
        coll.insert_many(
            [
                {"_id": "two", "stops": [{"at": point(50, 0)}, {"at": point(1, 0)}], "n": [1, 2]},
                {"_id": "line", "stops": {"at": {"type": "LineString", "coordinates": [[2, -5], [2, 5]]}}, "n": 1},
                {"_id": "area", "stops": {"at": polygon(square(3, -2, 4))}, "n": 3},
                {"_id": "pairs", "flat": [[7, 7], [1, 1]]},
                {"_id": "none", "n": 1},
                {"_id": "null", "stops": {"at": None}, "flat": None},
            ]
        )
        found = list(coll.aggregate([{"$geoNear": {"near": point(0, 0), "distanceField": "d", "key": "stops.at"}}]))
        assert [(d["_id"], round(math.degrees(d["d"] / EARTH), 6)) for d in found] == [("two", 1), ("line", 2), ("area", 3)]
        assert ids(coll.find({"stops.at": {"$nearSphere": [0, 0]}, "n": 2})) == ["two"]
        assert ids(coll.find({"flat": {"$near": [7, 7.5], "$maxDistance": 1}})) == ["pairs"]
        assert ids(coll.find({"stops.at": {"$geoIntersects": {"$geometry": point(5, 0)}}})) == ["area"]
        assert ids(coll.find({"stops.at": {"$geoIntersects": {"$geometry": {"type": "LineString", "coordinates": [[1.5, 0], [2.5, 0]]}}}})) == ["line"]


class TestBadInput:
    @pytest.mark.parametrize(
        "shape",
        [
            {"$geometry": {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1], [0, 1]]]}},
            {"$geometry": {"type": "Polygon", "coordinates": [[[0, 0], [2, 2], [2, 0], [0, 2], [0, 0]]]}},
            {"$geometry": {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [0, 0]]]}},
            {"$geometry": {"type": "Polygon", "coordinates": [[[0, 91], [1, 91], [1, 92], [0, 91]]]}},
            {"$geometry": polygon(square(0, 0, 1), square(50, 50, 1))},
            {"$geometry": polygon(square(0, 0, 9), square(1, 1, 5), square(2, 2, 1))},
            {"$geometry": {"type": "Polygon", "coordinates": []}},
            {"$geometry": {"type": "LineString", "coordinates": [[0, 0], [1, 1]]}},
            {"$geometry": {"type": "Shape", "coordinates": [0, 0]}},
            {"$geometry": {"coordinates": [0, 0]}},
            {"$box": [[0, 0]]},
            {"$box": [[0, 0], [float("nan"), 1]]},
            {"$center": [[0, 0], -1]},
            {"$centerSphere": [[0, 100], 1]},
            {"$polygon": [[0, 0], [1, 1]]},
            {"$sphere": 1},
            {},
            1,
        ],
    )
    def test_regions(self, coll, shape):
        fails(2, lambda: list(coll.find({"at": {"$geoWithin": shape}})))

    def test_near(self, coll):
        near = {"$geometry": point(0, 0)}
        fails(291, lambda: list(coll.find({"at": {"$near": near}})) if coll.insert_one({}) else None)
        coll.create_index([("at", "2dsphere")])
        for code, query in [
            (2, {"$or": [{"at": {"$near": near}}, {"n": 1}]}),
            (2, {"at": {"$near": near}, "b": {"$near": near}}),
            (2, {"at": {"$near": {"$geometry": point(0, 91)}}}),
            (2, {"at": {"$near": {**near, "$maxDistance": -1}}}),
            (2, {"at": {"$near": {**near, "$maxDistance": "x"}}}),
            (16895, {"at": {"$near": [0, 0], "$maxDistance": "x"}}),
            (16894, {"at": {"$near": [0, 0], "$minDistance": -1}}),
            (34413, {"at": {"$near": near, "$eq": 1}}),
            (291, {"at": {"$near": [0, 0]}}),
            (291, {"other": {"$near": near}}),
        ]:
            fails(code, lambda: list(coll.find(query)))
        fails(5626500, lambda: list(coll.aggregate([{"$match": {"at": {"$near": near}}}])))
        fails(2, lambda: list(coll.find({"at": {"$near": near}}).hint([("$natural", 1)])))

    def test_geo_near(self, coll):
        run = lambda **options: list(coll.aggregate([{"$geoNear": {"distanceField": "d", **options}}]))
        fails(26, lambda: run(near=point(0, 0)))
        coll.insert_one({"at": point(0, 0)})
        fails(27, lambda: run(near=point(0, 0)))
        coll.create_index([("at", "2dsphere")])
        for code, options in [
            (5860400, {}),
            (5860401, {"near": 1}),
            (5860402, {"near": "$at"}),
            (16606, {"near": point(0, 0), "distanceField": 1}),
            (16607, {"near": point(0, 0), "includeLocs": 1}),
            (14, {"near": point(0, 0), "maxDistance": "x"}),
            (2, {"near": point(0, 0), "minDistance": -1}),
            (2, {"near": point(0, 0), "bogus": 1}),
            (5626500, {"near": point(0, 0), "query": {"at": {"$near": [0, 0]}}}),
        ]:
            fails(code, lambda: run(**options))
        coll.create_index([("also", "2dsphere")])
        fails(27, lambda: run(near=point(0, 0)))
        assert len(run(near=point(0, 0), key="at")) == 1
        assert coll.database.command("aggregate", coll.name, cursor={}, let={"p": point(0, 0)},
                                     pipeline=[{"$geoNear": {"near": "$$p", "key": "at"}}])["ok"] == 1

    def test_a_bad_document_leaves_nothing(self, coll):
        coll.create_index("n")
        coll.create_index([("at", "2dsphere")])
        coll.create_index([("flat", "2d")])
        coll.insert_one({"_id": 0, "n": 0, "at": point(0, 0), "flat": [0, 0]})
        for code, doc in [
            (16755, {"at": {"type": "Point", "coordinates": [0, 91]}}),
            (16755, {"at": "here"}),
            (16755, {"at": [point(0, 0), point(1, 1)]}),
            (16755, {"at": {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1]]]}}),
            (13027, {"flat": [181, 0]}),
            (16804, {"flat": point(0, 0)}),
            (13068, {"flat": [1]}),
            (13026, {"flat": [1, "x"]}),
        ]:
            with pytest.raises(BulkWriteError) as e:
                coll.insert_many([{"_id": 1, "n": 1, **doc}])
            assert e.value.details["writeErrors"][0]["code"] == code, doc
            fails(code, lambda: coll.update_one({"_id": 0}, {"$set": {"n": 1, **doc}}))
        assert coll.count_documents({}) == 1 and coll.find_one({"n": 1}) is None
        told = coll.database.command("validate", coll.name, full=True)
        assert told["valid"] and set(told["keysPerIndex"].values()) == {1}, told

    def test_indexes(self, coll):
        create = lambda key, **options: coll.database.command("createIndexes", coll.name, indexes=[{"key": SON(key), "name": "x", **options}])
        for code, key, options in [
            (67, [("a", "2dsphere")], {"2dsphereIndexVersion": 4}),
            (72, [("a", "2d")], {"bits": 0}),
            (72, [("a", "2d")], {"min": 5, "max": 5}),
            (16801, [("b", 1), ("a", "2d")], {}),
            (16800, [("a", "2d"), ("b", "2d")], {}),
        ]:
            fails(code, lambda: create(key, **options))
        create([("a", "2dsphere")])
        assert coll.index_information()["x"]["2dsphereIndexVersion"] == 3
        coll.drop_indexes()
        create([("a", "2d")], bits=4, min=-500, max=500)
        coll.insert_many([{"_id": i, "a": [i, i]} for i in range(-400, 401, 50)])
        assert ids(coll.find({"a": {"$near": [310, 310]}}).limit(3)) == [300, 350, 250]
        assert sorted(ids(coll.find({"a": {"$geoWithin": {"$center": [[0, 0], 100]}}}))) == [-50, 0, 50]
        coll.drop_indexes()
        coll.insert_one({"a": "nowhere"})
        fails(16755, lambda: create([("a", "2dsphere")]))

    def test_partial_and_sparse(self, coll):
        coll.create_index([("at", "2dsphere")], partialFilterExpression={"open": True})
        coll.insert_many([{"_id": i, "at": point(i, 0), "open": i % 2 == 0} for i in range(6)] + [{"_id": 9}])
        near = {"at": {"$near": {"$geometry": point(0, 0)}}}
        assert ids(coll.find({**near, "open": True})) == [0, 2, 4]
        fails(291, lambda: list(coll.find(near)))
        assert coll.find({}).sort("at", 1).to_list()[0]["_id"] == 9
