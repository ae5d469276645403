"""Search indexes as a driver makes and asks them, and whether one agrees with its collection."""

from harness import until
from pymongo.operations import SearchIndexModel

DYNAMIC = {"mappings": {"dynamic": True}}


def is_ready(coll, name="default"):
    return any(i["queryable"] and i["status"] == "READY" for i in coll.list_search_indexes(name))


def indexed(coll, definition=DYNAMIC, name="default", kind="search", timeout_s=30):
    """Makes a search index, and waits until it answers."""
    coll.create_search_index(SearchIndexModel(definition, name, kind))
    until("the search index is ready", lambda: is_ready(coll, name), timeout_s)
    return coll


def found(coll, operator, *stages, **options):
    return list(coll.aggregate([{"$search": {**operator, **options}}, *stages]))


def ids(coll, operator, **options):
    return sorted((d["_id"] for d in found(coll, operator, **options)), key=order)


def order(i):
    return (type(i).__name__, i)


def text(query, path="title", **more):
    return {"text": {"query": query, "path": path, **more}}


def shows(coll, operator, wanted):
    until(f"{operator} finds {wanted}", lambda: ids(coll, operator) == wanted)


def differences(coll, words):
    """What an index and its collection tell differently: which documents there are, and which have a word of `words` in their
    title. Documents that the index still has and the collection has not are left out when they are given, so they are counted
    apart."""
    stored = {d["_id"]: d.get("title", "") for d in coll.find({}, {"title": 1})}
    wrong = []
    if ids(coll, {"exists": {"path": "_id"}}) != sorted(stored, key=order):
        wrong.append("the documents")
    [meta] = coll.aggregate([{"$searchMeta": {"exists": {"path": "_id"}, "count": {"type": "total"}}}])
    if meta["count"]["total"] != len(stored):
        wrong.append(f"{meta['count']['total']} documents in the index, {len(stored)} in the collection")
    for word in words:
        if ids(coll, text(word)) != sorted((i for i, title in stored.items() if word in title.split()), key=order):
            wrong.append(word)
    return wrong
