"""What find must give, said as simply as it can be: a filter over Python documents, and MongoDB's order.

Covers what test_model.py generates: null, numbers, strings, booleans, objects of one level, arrays of these.
"""

MISSING = object()


def kind(v):
    """The class of a type in MongoDB's order."""
    if v is None or v is MISSING:
        return 1
    if isinstance(v, bool):
        return 6
    if isinstance(v, (int, float)):
        return 2
    if isinstance(v, str):
        return 3
    return 4 if isinstance(v, dict) else 5


def key(v):
    """Sorts as MongoDB orders values."""
    if kind(v) == 1:
        return (1,)
    if isinstance(v, dict):
        return (4, [(kind(x), n, key(x)) for n, x in v.items()])
    if isinstance(v, list):
        return (5, [key(x) for x in v])
    return (kind(v), v)


def at(value, names):
    """What stands at a path: for each way through arrays on the way, one value or MISSING."""
    if not names:
        return [value]
    if isinstance(value, dict):
        return at(value[names[0]], names[1:]) if names[0] in value else [MISSING]
    if isinstance(value, list):
        return [v for e in value if isinstance(e, dict) for v in at(e, names)]
    return [MISSING]


def candidates(document, path):
    """Values that a predicate on a path looks at: those there, and the elements of those that are arrays."""
    found = []
    for v in at(document, path.split(".")):
        if isinstance(v, list):
            found += v
        found.append(v)
    return found


def same(a, b):
    return kind(a) == kind(b) and key(a) == key(b)


def compares(v, op, operand):
    if kind(v) != kind(operand):
        return False
    a, b = key(v), key(operand)
    return {"$gt": a > b, "$gte": a >= b, "$lt": a < b, "$lte": a <= b}[op]


def predicate(values, op, operand):
    if op == "$eq":
        return any(same(v, operand) for v in values)
    if op in ("$gt", "$gte", "$lt", "$lte"):
        return any(compares(v, op, operand) for v in values)
    if op == "$in":
        return any(same(v, o) for v in values for o in operand)
    raise NotImplementedError(op)


def condition(document, path, op, operand):
    if op == "$ne":
        return not condition(document, path, "$eq", operand)
    if op == "$nin":
        return not condition(document, path, "$in", operand)
    if op == "$not":
        return not all(condition(document, path, o, x) for o, x in operand.items())
    raw = at(document, path.split("."))
    if op == "$exists":
        return any(v is not MISSING for v in raw) == operand
    if op == "$size":
        return any(isinstance(v, list) and len(v) == operand for v in raw)
    if op == "$all":
        return bool(operand) and all(condition(document, path, "$eq", o) for o in operand)
    if op == "$elemMatch":
        return any(
            all(predicate([e], o, x) for o, x in operand.items()) for v in raw if isinstance(v, list) for e in v
        )
    if op == "$mod":
        return any(kind(v) == 2 and int(v) % operand[0] == operand[1] for v in candidates(document, path))
    return predicate(candidates(document, path), op, operand)


def matches(document, query):
    for name, value in query.items():
        if name == "$and":
            good = all(matches(document, q) for q in value)
        elif name == "$or":
            good = any(matches(document, q) for q in value)
        elif name == "$nor":
            good = not any(matches(document, q) for q in value)
        elif isinstance(value, dict) and value and next(iter(value)).startswith("$"):
            good = all(condition(document, name, op, operand) for op, operand in value.items())
        else:
            good = condition(document, name, "$eq", value)
        if not good:
            return False
    return True


def sort_values(value, names):
    """What a path gives to sort by, as to an index: an array on the way counts as its elements, which lack what they lack."""
    if isinstance(value, list) and names:
        return [v for e in value or [None] for v in (sort_values(e, names) if isinstance(e, dict) else [MISSING])]
    if names:
        return sort_values(value[names[0]], names[1:]) if isinstance(value, dict) and names[0] in value else [MISSING]
    return value if isinstance(value, list) and value else [value]


def sort_key(document, path, direction):
    """An array sorts by its least element upwards, by its greatest downwards; an empty one before null."""
    found = [(0,) if v == [] else key(v) for v in sort_values(document, path.split("."))]
    return min(found) if direction == 1 else max(found)


def find(documents, query, sort=(), skip=0, limit=0):
    found = [d for d in documents if matches(d, query)]
    for path, direction in reversed(sort):
        found.sort(key=lambda d: sort_key(d, path, direction), reverse=direction == -1)
    return found[skip : skip + limit if limit else None]
