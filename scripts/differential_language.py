"""Random documents, filters, pipelines and updates for scripts/differential.py: all from one `random.Random`, so a seed replays them.

Documents have the fields `a` to `e` and some more, of few values, so that filters meet, sorts tie, and arrays stand next to scalars.
"""

import datetime

from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp

STRINGS = ["", "a", "A", "á", "ab", "aB", "b", "B", "10", "9", "ß", "ss", "é", "e\u0301", "a b", "zz"]
DAY = datetime.datetime(2024, 2, 28, 23, 59, 59, 999000)
WORDS = ["run", "running", "runner", "coffee", "Coffee", "café", "cafe", "the", "shop", "shops", "tea", "iced tea", "x-ray", "42"]


class Language:
    def __init__(self, rng):
        self.r = rng

    def scalar(self):
        r = self.r
        return r.choice([
            lambda: r.randint(-3, 6), lambda: r.randint(-3, 6), lambda: r.randint(0, 3), lambda: Int64(r.randint(-3, 6)),
            lambda: r.choice([0.5, -0.0, 2.0, 1e300, float("inf"), float("-inf"), float("nan"), 2.0**53]),
            lambda: Decimal128(r.choice(["1", "1.0", "0.1", "-2.50", "NaN", "Infinity", "1E+10"])),
            lambda: Int64(2**53 + r.randint(0, 2)),
            lambda: r.choice(STRINGS), lambda: r.choice(STRINGS), lambda: r.choice(STRINGS),
            lambda: None, lambda: r.random() < 0.5, lambda: DAY + datetime.timedelta(milliseconds=r.randint(-2, 2)),
            lambda: Timestamp(r.randint(1, 2), r.randint(0, 2)), lambda: ObjectId(bytes([r.randint(0, 2)]) * 12),
            lambda: Binary(bytes(r.randint(0, 2)), r.choice([0, 0, 5])), lambda: Regex(r.choice(["a", "b"]), r.choice([0, 2])),
            lambda: r.choice([MinKey(), MaxKey()]),
        ])()

    def value(self, depth=2):
        p = self.r.random()
        if depth and p < 0.2:
            return [self.value(depth - 1) for _ in range(self.r.randint(0, 3))]
        if depth and p < 0.35:
            return {k: self.value(depth - 1) for k in self.r.sample(["x", "y", "0"], self.r.randint(0, 2))}
        return self.scalar()

    def document(self, _id):
        r = self.r
        out = {"_id": _id}
        makers = {
            "a": self.value, "b": lambda: r.randint(0, 5), "c": lambda: [self.scalar() for _ in range(r.randint(0, 3))],
            "d": lambda: {"x": self.value(1), "y": r.randint(0, 3)},
            "e": lambda: [{"x": self.scalar(), "y": r.randint(0, 3)} for _ in range(r.randint(0, 3))],
            "s": lambda: r.choice(STRINGS),
        }
        for name in r.sample(list(makers), len(makers)):
            if r.random() < 0.85:
                out[name] = makers[name]()
        return out

    PATHS = ["a", "b", "c", "d", "d.x", "d.y", "e", "e.x", "e.y", "s", "c.0", "e.0.x", "a.x", "a.0", "_id"]

    def path(self):
        return self.r.choice(self.PATHS)

    def sample(self):
        """A value that a filter asks for: no expression of its own, and no regular expression where none may stand."""
        value = self.value(1)
        return value if not isinstance(value, Regex) else 1

    def test(self, depth=1):
        r = self.r
        some = [
            lambda: {"$eq": self.sample()}, lambda: {"$ne": self.sample()}, lambda: {"$gt": self.sample()}, lambda: {"$gte": self.sample()},
            lambda: {"$lt": self.sample()}, lambda: {"$lte": self.sample()}, lambda: {"$gte": r.randint(-3, 3), "$lt": r.randint(0, 6)},
            lambda: {"$gt": r.choice(STRINGS), "$lte": r.choice(STRINGS)}, lambda: {"$in": [self.value(1) for _ in range(r.randint(0, 4))]},
            lambda: {"$nin": [self.value(1) for _ in range(r.randint(0, 3))]}, lambda: {"$exists": r.random() < 0.5},
            lambda: {"$type": r.choice(["number", "string", "object", "array", "null", "bool", "date", "int", "double"])},
            lambda: {"$size": r.randint(0, 3)}, lambda: {"$all": [self.sample() for _ in range(r.randint(1, 2))]},
            lambda: {"$mod": [r.randint(1, 3), r.randint(0, 2)]}, lambda: {"$regex": r.choice(["^a", "^A", "b$", "^", "^ab"])},
            lambda: {"$regex": "^a", "$options": "i"}, lambda: {"$bitsAnySet": r.randint(0, 7)},
        ]
        if depth:
            some += [
                lambda: {"$not": self.test(0)}, lambda: {"$elemMatch": self.test(0)}, lambda: {"$elemMatch": {"x": self.test(0)}},
                lambda: {"$elemMatch": {"x": self.test(0), "y": self.test(0)}}, lambda: {"$all": [{"$elemMatch": {"y": self.test(0)}}]},
            ]
        return r.choice(some)()

    def filter(self, depth=2):
        r, p = self.r, self.r.random()
        if depth and p < 0.25:
            return {r.choice(["$and", "$or", "$or", "$nor"]): [self.filter(depth - 1) for _ in range(r.randint(1, 3))]}
        if p < 0.32:
            return {"$expr": self.predicate()}
        return {self.path(): self.value(1) if r.random() < 0.25 else self.test() for _ in range(r.choice([1, 1, 1, 2, 2, 3]))}

    def partial(self, depth=1):
        """The filter of a partial index."""
        r = self.r
        if depth and r.random() < 0.3:
            return {r.choice(["$and", "$or", "$or"]): [self.partial(0) for _ in range(2)]}
        tests = [
            lambda: {r.choice(["$eq", "$gt", "$gte", "$lt", "$lte"]): self.scalar_of_filters()}, lambda: {"$exists": True},
            lambda: {"$type": r.choice(["number", "string", "object", "array", "null", "int", "double", "bool"])},
            lambda: {"$in": [self.scalar_of_filters() for _ in range(r.randint(1, 3))]}, lambda: {"$gte": r.randint(-3, 1), "$lt": r.randint(1, 6)},
        ]
        return {r.choice(["a", "b", "c", "d.x", "e.y", "s"]): r.choice(tests)() for _ in range(r.choice([1, 1, 2]))}

    def scalar_of_filters(self):
        value = self.scalar()
        return 2 if isinstance(value, Regex) else value

    def predicate(self):
        r = self.r
        one = {r.choice(["$eq", "$lt", "$lte", "$gt", "$gte", "$ne"]): ["$" + r.choice(["a", "b", "s", "d.x", "d.y", "e.y"]), {"$literal": self.sample()}]}
        return one if r.random() < 0.7 else {r.choice(["$and", "$or"]): [one, self.predicate()]}

    def expression(self):
        r = self.r
        return r.choice([
            "$a", "$b", "$d.x", "$e.y", "$s", "$$ROOT.b", {"$literal": self.value(1)}, {"$ifNull": ["$a", 0]}, {"$type": "$a"}, {"$size": {"$ifNull": ["$e", []]}},
            {"$cond": [self.predicate(), "$a", "$$REMOVE"]}, {"$add": [{"$ifNull": ["$b", 0]}, 1]}, {"$isArray": "$a"}, ["$a", "$b"], {"x": "$a", "y": "$b"},
            {"$map": {"input": {"$ifNull": ["$e", []]}, "in": "$$this.y"}}, {"$concat": [{"$ifNull": ["$s", ""]}, "-"]}, {"$cmp": ["$a", "$d.x"]},
            {"$filter": {"input": {"$ifNull": ["$c", []]}, "cond": {"$gt": ["$$this", 1]}}}, {"$setUnion": [{"$ifNull": ["$c", []]}, [1]]},
            {"$reduce": {"input": {"$ifNull": ["$e", []]}, "initialValue": 0, "in": {"$add": ["$$value", "$$this.y"]}}}, {"$max": ["$a", "$b"]},
            {"$toString": {"$ifNull": ["$b", 0]}}, {"$mergeObjects": [{"$cond": [{"$eq": [{"$type": "$d"}, "object"]}, "$d", {}]}, {"z": 1}]},
        ])

    def projection(self):
        r = self.r
        if r.random() < 0.3:
            return {r.choice(["a", "d", "d.x", "e.x", "c"]): 0}
        return {r.choice(["a", "b", "d.x", "e.y"]): 1, "s": 1, **({"v": self.expression()} if r.random() < 0.4 else {})}

    def stage(self, other="other"):
        """A stage of a pipeline whose documents are in one order, and of one `_id` each; and whether that is so after it."""
        r = self.r
        keep = [
            lambda: {"$match": self.filter()}, lambda: {"$match": self.filter(1)}, lambda: {"$addFields": {r.choice(["v", "a", "d.z"]): self.expression()}},
            lambda: {"$project": self.projection()}, lambda: {"$unset": r.choice(["a", "d.x", "e"])}, lambda: {"$limit": r.randint(1, 40)}, lambda: {"$skip": r.randint(0, 5)},
            lambda: {"$sort": {r.choice(["a", "b", "d.x", "e.y", "s"]): r.choice([1, -1]), "_id": 1}}, lambda: {"$replaceWith": {"_id": "$_id", "a": "$b", "b": self.expression()}},
            lambda: {"$redact": {"$cond": [self.predicate(), "$$PRUNE", "$$KEEP"]}},
            lambda: {"$setWindowFields": {"partitionBy": "$b", "sortBy": {"_id": 1}, "output": {"w": {"$sum": "$d.y", "window": {"documents": [-1, 1]}}, "n": {"$documentNumber": {}}}}},
            lambda: {"$lookup": {"from": other, "localField": r.choice(["a", "b", "c"]), "foreignField": r.choice(["a", "b", "c"]), "pipeline": [{"$sort": {"_id": 1}}, {"$project": {"b": 1}}], "as": "j"}},
            lambda: {"$lookup": {"from": other, "let": {"v": "$b"}, "pipeline": [{"$match": {"$expr": {"$eq": ["$b", "$$v"]}}}, {"$sort": {"_id": 1}}, {"$limit": 3}], "as": "j"}},
        ]
        # These come sorted, or are made so: more than one stage each.
        several = [
            lambda: [{"$sortByCount": r.choice(["$b", "$d.y", "$s"])}, {"$sort": {"_id": 1}}],
            lambda: [{"$bucket": {"groupBy": {"$ifNull": ["$b", 9]}, "boundaries": [0, 2, 4], "default": "more", "output": {"n": {"$sum": 1}, "f": {"$first": "$b"}}}}, {"$sort": {"_id": 1}}],
            lambda: [{"$bucketAuto": {"groupBy": "$_id", "buckets": r.randint(1, 4), "output": {"n": {"$sum": 1}, "m": {"$max": "$b"}}}}, {"$sort": {"_id": 1}}],
            lambda: [{"$graphLookup": {"from": other, "startWith": "$b", "connectFromField": r.choice(["d.y", "a"]), "connectToField": r.choice(["b", "d.y"]), "as": "g",
                                       "maxDepth": r.randint(0, 2), **({"restrictSearchWithMatch": self.filter(1)} if r.random() < 0.3 else {})}},
                     {"$set": {"g": {"$sortArray": {"input": "$g._id", "sortBy": 1}}}}],
            lambda: [{"$fill": {"sortBy": {"_id": 1}, **({"partitionBy": "$d.y"} if r.random() < 0.3 else {}), "output": {"b": r.choice([{"method": "locf"}, {"value": 7}])}}}, {"$sort": {"_id": 1}}],
            lambda: [{"$group": {"_id": "$b", "t": {"$top": {"sortBy": {"_id": r.choice([1, -1])}, "output": "$d.y"}}, "n": {"$firstN": {"n": 2, "input": "$_id"}}, "l": {"$last": "$s"},
                                 "x": {"$maxN": {"n": 2, "input": "$d.y"}}, "a": {"$addToSet": "$d.y"}}}, {"$set": {"a": {"$sortArray": {"input": "$a", "sortBy": 1}}}}, {"$sort": {"_id": 1}}],
            lambda: [{"$setWindowFields": {"partitionBy": r.choice(["$d.y", None]), "sortBy": {"_id": 1}, "output": {"k": {"$rank": {}}, "h": {"$shift": {"output": "$b", "by": -1}}, "p": {"$push": "$b", "window": {"documents": ["unbounded", "current"]}}}}}],
        ]
        end = [
            lambda: {"$unwind": {"path": r.choice(["$e", "$c", "$a"]), "preserveNullAndEmptyArrays": r.random() < 0.5, **({"includeArrayIndex": "i"} if r.random() < 0.3 else {})}},
            lambda: {"$unionWith": {"coll": other, "pipeline": [{"$match": self.filter(1)}, {"$sort": {"_id": 1}}]}}, lambda: {"$count": "n"},
            lambda: {"$facet": {"x": [{"$match": self.filter(1)}, {"$count": "n"}], "y": [{"$limit": 2}]}},
        ]
        group = lambda: {"$group": {"_id": r.choice(["$b", {"y": "$d.y", "b": "$b"}, None]), "n": {"$sum": 1}, "m": {"$max": "$d.y"}, "f": {"$first": "$b"}, "p": {"$push": "$b"}}}  # noqa: E731
        p = r.random()
        if p < 0.65:
            return [r.choice(keep)()], True
        if p < 0.8:
            return r.choice(several)(), True
        if p < 0.9:
            return [group(), {"$sort": {"_id": 1}}], True
        return [r.choice(end)()], False

    def pipeline(self, longest=5, other="other"):
        """Begins with a total order. What may change it comes last, so that the whole has one answer."""
        out = [{"$sort": {"_id": r} for r in [self.r.choice([1, -1])]}]
        for _ in range(self.r.randint(1, longest)):
            stages, ordered = self.stage(other)
            out += stages
            if not ordered:
                break
        return out

    def update(self):
        r = self.r
        path = lambda: r.choice(["a", "b", "c", "d.x", "d.y", "e.0.y", "d.n.m", "s", "new", "c.1", "e.1", "z.01", "z.1", "d"])  # noqa: E731
        if r.random() < 0.15:
            return [r.choice([{"$set": {path(): self.expression()}}, {"$unset": r.choice(["a", "d.x", "e"])}, {"$replaceWith": {"_id": "$_id", "a": self.expression(), "s": "$s"}}])
                    for _ in range(r.randint(1, 2))]
        if r.random() < 0.08:
            return {k: v for k, v in self.document(0).items() if k != "_id"}
        many = [
            lambda: {"$set": {path(): self.value()}}, lambda: {"$set": {path(): self.value(), path(): self.scalar()}}, lambda: {"$unset": {path(): 1}},
            lambda: {"$inc": {r.choice(["b", "d.y", "new", "e.0.y"]): r.choice([1, -2, 0.5, Int64(3)])}}, lambda: {"$mul": {"b": 2}}, lambda: {"$min": {path(): self.scalar()}},
            lambda: {"$max": {path(): self.scalar()}}, lambda: {"$rename": {r.choice(["a", "s", "d.x"]): r.choice(["r", "d.q"])}}, lambda: {"$push": {r.choice(["c", "e", "l"]): self.value(1)}},
            lambda: {"$push": {"c": {"$each": [self.scalar(), self.scalar()], "$position": r.randint(-1, 2), "$slice": r.randint(-4, 4)}}},
            lambda: {"$push": {"e": {"$each": [{"x": 1, "y": r.randint(0, 3)}], "$sort": {"y": r.choice([1, -1])}}}}, lambda: {"$pop": {"c": r.choice([1, -1])}},
            lambda: {"$pull": {"c": self.sample() if r.random() < 0.5 else {"$gte": r.randint(0, 4)}}}, lambda: {"$pull": {"e": {"y": r.randint(0, 3)}}}, lambda: {"$pullAll": {"c": [self.scalar()]}},
            lambda: {"$addToSet": {"c": self.sample()}}, lambda: {"$addToSet": {"c": {"$each": [self.scalar(), self.scalar()]}}}, lambda: {"$set": {"e.$[].x": self.scalar()}},
            lambda: {"$bit": {"b": {r.choice(["and", "or", "xor"]): r.randint(0, 7)}}}, lambda: {"$setOnInsert": {"i": 1}},
        ]
        one = r.choice(many)()
        if r.random() < 0.25:
            another = r.choice(many)()
            if next(iter(another)) not in one:
                one.update(another)
        return one

    # Shapes, texts and measurements.

    def point(self):
        return [self.r.randint(-1800, 1800) / 10, self.r.randint(-900, 900) / 10] if self.r.random() < 0.3 else [self.r.randint(-50, 50) / 10, self.r.randint(-50, 50) / 10]

    def ring(self):
        x, y = self.point()
        x, y = max(-170, min(165, x)), max(-80, min(75, y))
        w, h = self.r.choice([(1, 1), (3, 2), (0.1, 5), (8, 8)])
        return [[x, y], [x + w, y], [x + w, min(y + h, 85)], [x, min(y + h, 85)], [x, y]]

    def shape(self):
        r = self.r
        return r.choice([
            lambda: {"type": "Point", "coordinates": self.point()}, lambda: {"type": "Point", "coordinates": self.point()},
            lambda: {"type": "LineString", "coordinates": [[0.5 * i, self.point()[1] / 20] for i in range(r.randint(2, 4))]},
            lambda: {"type": "Polygon", "coordinates": [self.ring()]}, lambda: {"type": "MultiPoint", "coordinates": [self.point(), self.point()]},
        ])()

    def around(self):
        """What `$geoWithin` or `$geoIntersects` asks for on the sphere."""
        r = self.r
        return r.choice([
            lambda: {"$geoWithin": {"$centerSphere": [self.point(), r.choice([0.001, 0.02, 0.1, 1.0])]}},
            lambda: {"$geoWithin": {"$geometry": {"type": "Polygon", "coordinates": [self.ring()]}}},
            lambda: {"$geoIntersects": {"$geometry": self.shape()}},
        ])()

    def text(self):
        return " ".join(self.r.choice(WORDS) for _ in range(self.r.randint(0, 6)))
