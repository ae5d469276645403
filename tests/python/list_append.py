"""Histories of transactions that append to lists and read them, and whether snapshot isolation could have made them.

After Elle (Kingsbury and Alvaro, VLDB 2020): each value is appended once, so that a list tells the order of
its writers. A transaction is a list of `("append", key, value)` and `("read", key, values)`. Edges are `ww`
(the next writer of a list), `wr` (from the writer of the last value read) and `rw` (to the writer of the next
value). By Cerone and Gotsman (JACM 2018) a history is one of snapshot isolation exactly if no cycle is made
of steps that are a `ww` or `wr` edge, with or without one `rw` edge behind it: a cycle has two `rw` edges in
a row, as write skew has, or is a fault.
"""

import collections


def faults(committed, doubtful, final):
    """`committed`: transactions that were told to have committed; `doubtful`: those that may have; `final`: the lists at the
    end. Gives the faults, as texts."""
    wrong = []
    order = {key: list(values) for key, values in final.items()}
    for key, values in order.items():
        if len(set(values)) != len(values):
            wrong.append(f"{key} has a value twice: {values}")
    there = {(key, v) for key, values in order.items() for v in values}
    happened = list(committed)
    for t in doubtful:
        appended = [(k, v) for what, k, v in t if what == "append"]
        seen = [a in there for a in appended]
        if any(seen):
            if not all(seen):
                wrong.append(f"of a transaction a part is there: {t}")
            happened.append(t)
    writer = {}
    for n, t in enumerate(happened):
        for what, key, value in t:
            if what == "append":
                writer[key, value] = n
                if (key, value) not in there:
                    wrong.append(f"{value} of {key} was acknowledged and is lost: {t}")
    wrong += [f"nobody who committed wrote {v} of {k}" for k, v in sorted(there - set(writer))]
    edges = {"ww": set(), "wr": set(), "rw": set()}
    for key, values in order.items():
        owners = [writer.get((key, v)) for v in values]
        edges["ww"] |= {(a, b) for a, b in zip(owners, owners[1:]) if a != b and None not in (a, b)}
    for n, t in enumerate(happened):
        wrong += read(n, t, order, writer, edges)
    return wrong + cycles(edges, happened)


def read(n, t, order, writer, edges):
    wrong, own = [], collections.defaultdict(list)
    for what, key, value in t:
        if what == "append":
            own[key].append(value)
            continue
        mine = own[key]
        if value[len(value) - len(mine):] != mine:
            wrong.append(f"a transaction does not see what it wrote to {key}: {t}")
            continue
        before = value[: len(value) - len(mine)]
        if order.get(key, [])[: len(before)] != before:
            wrong.append(f"{before} of {key} was read, which was never its state: {order.get(key)}")
            continue
        if before and writer.get((key, before[-1]), n) != n:
            edges["wr"].add((writer[key, before[-1]], n))
        behind = order.get(key, [])[len(before):]
        if behind and writer.get((key, behind[0]), n) != n:
            edges["rw"].add((n, writer[key, behind[0]]))
    return wrong


def cycles(edges, happened):
    behind = collections.defaultdict(set)
    for a, b in edges["rw"]:
        behind[a].add(b)
    steps = collections.defaultdict(set)
    for a, b in edges["ww"] | edges["wr"]:
        steps[a] |= {b} | behind[b]
    state = {}
    for start in list(steps):
        path, todo = [], [(start, None)]
        while todo:
            node, rest = todo.pop()
            if rest is None:
                if state.get(node) == "done":
                    continue
                if state.get(node) == "open":
                    ring = path[path.index(node):]
                    return [f"a cycle of {len(ring)} steps that is no write skew: {[happened[n] for n in ring]}"]
                state[node], rest = "open", iter(steps[node])
                path.append(node)
            following = next(rest, None)
            if following is None:
                state[node] = "done"
                path.pop()
            else:
                todo += [(node, rest), (following, None)]
    return []
