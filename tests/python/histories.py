"""Checks histories of transactions that append to lists and read them: what snapshot isolation forbids.

Every value is appended once, so a list tells the order of the writes to its key, and a read tells whose writes it saw (the
idea of Elle, by Kingsbury and Alvaro). Between transactions there are three kinds of edges:

    ww  the next append to a key          wr  a read of what another has appended
    rw  a read of a list to which another then appended

Snapshot isolation allows a cycle only where two rw edges follow each other (write skew; Fekete, Adya). Anything else is an
anomaly: a lost update, a read of aborted or half-done writes, a snapshot that moves.
"""

import collections


def check(transactions, final, aborted=()):
    """`transactions`: lists of ("append", key, value) and ("read", key, list) that were committed, in their order within each;
    `final`: each key's list at the end; `aborted`: values that must be nowhere. Gives a list of faults."""
    wrong = []
    owner = {}
    for t, ops in enumerate(transactions):
        for kind, key, value in ops:
            if kind == "append":
                owner[value] = t
    for key, values in final.items():
        if len(values) != len(set(values)):
            wrong.append(f"{key}: a value is there twice: {values}")
        wrong += [f"{key}: {v} was aborted" for v in values if v in aborted]
    there = {v for values in final.values() for v in values}
    wrong += [f"{v} was committed and is lost" for v in owner if v not in there]
    depends, anti = collections.defaultdict(set), collections.defaultdict(set)
    last_of = {}
    for key, values in final.items():
        owners = [owner.get(v) for v in values]
        for a, b in zip(owners, owners[1:]):
            if a is not None and b is not None and a != b:
                depends[a].add(b)
        for v, o in zip(values, owners):
            last_of[o, key] = v
    for t, ops in enumerate(transactions):
        own = collections.defaultdict(list)
        for kind, key, value in ops:
            if kind == "append":
                own[key].append(value)
                continue
            mine = own[key]
            if mine and value[-len(mine):] != mine:
                wrong.append(f"transaction {t} does not see its own {mine} in {key}: {value}")
                continue
            seen = value[: len(value) - len(mine)]
            whole = final.get(key, [])
            if seen != whole[: len(seen)]:
                wrong.append(f"transaction {t} read {seen} of {key}, which was never so: {whole}")
                continue
            if seen:
                writer = owner.get(seen[-1])
                if writer is not None and writer != t:
                    depends[writer].add(t)
                    if last_of.get((writer, key)) != seen[-1]:
                        wrong.append(f"transaction {t} read {seen[-1]} of {key}, in the middle of transaction {writer}")
            if len(whole) > len(seen):
                after = owner.get(whole[len(seen)])
                if after is not None and after != t:
                    anti[t].add(after)
    edges = {t: set(depends[t]) for t in range(len(transactions))}
    for t in range(len(transactions)):
        for middle in depends[t]:
            edges[t] |= anti[middle]
    cycle = find_cycle(edges)
    if cycle:
        wrong.append("a cycle that snapshot isolation forbids: " + " -> ".join(f"{t}: {transactions[t]}" for t in cycle))
    return wrong


def find_cycle(edges):
    """A cycle of a graph as a list of its nodes; None when there is none."""
    state = {}
    for start in edges:
        if start in state:
            continue
        path, stack = [], [(start, iter(edges[start]))]
        state[start] = "open"
        path.append(start)
        while stack:
            node, rest = stack[-1]
            step = next(rest, None)
            if step is None:
                state[node] = "done"
                path.pop()
                stack.pop()
            elif state.get(step) == "open":
                return path[path.index(step) :] + [step]
            elif step not in state:
                state[step] = "open"
                path.append(step)
                stack.append((step, iter(edges[step])))
    return None
