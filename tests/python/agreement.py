"""That indexes agree with the documents, checked from outside: each index is read whole and compared with a scan."""


def dotted(document, path):
    """Values at a path as an index sees them (arrays at the end are expanded); enough for the shapes that tests write."""
    values = [document]
    for name in path.split("."):
        following = []
        for value in values:
            for v in value if isinstance(value, list) else [value]:
                following.append(v.get(name) if isinstance(v, dict) else None)
        values = following
    return values


def assert_indexes_agree(coll):
    documents = {repr(d["_id"]): d for d in coll.find().hint([("$natural", 1)])}
    result = coll.database.validate_collection(coll.name, full=True)
    assert result["valid"] is True, result
    assert result["nrecords"] == len(documents)
    for name, index in coll.index_information().items():
        if index.get("hidden"):
            continue
        found = [repr(d["_id"]) for d in coll.find(index.get("partialFilterExpression", {}), {"_id": 1}).hint(name)]
        assert len(found) == len(set(found)), f"{name} gives a document twice"
        if "partialFilterExpression" in index:
            expected = {repr(d["_id"]) for d in coll.find(index["partialFilterExpression"], {"_id": 1}).hint([("$natural", 1)])}
        elif index.get("sparse"):
            fields = [f for f, _ in index["key"]]
            expected = {i for i, d in documents.items() if any(f in d for f in fields)}
        else:
            expected = set(documents)
        assert set(found) == expected, f"{name}: {len(set(found) ^ expected)} documents differ"
        # Every value that documents have is found through the index, and only there.
        field = index["key"][0][0]
        if field == "_id" or "partialFilterExpression" in index:
            continue
        wanted = {}
        for i, d in documents.items():
            for value in dotted(d, field):
                for v in value if isinstance(value, list) else [value]:
                    if isinstance(v, (int, float, str)) and not isinstance(v, bool):
                        wanted.setdefault(v, set()).add(i)
        for v in list(wanted)[:200]:
            through = {repr(d["_id"]) for d in coll.find({field: v}, {"_id": 1}).hint(name)}
            assert through == wanted[v], f"{name} at {v!r}: {through ^ wanted[v]}"
