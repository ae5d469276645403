"""Pipelines over documents of 1 KB a second, through the server's socket and by DuckDB in process, over the same documents as JSON.

    scripts/measure.py aggregates target/release/pando [DOCUMENTS, 300000] [ROUNDS, 5] [SECONDS, 2]

The documents and pipelines are those of `pando lab study aggregate` (crates/lab/src/study/aggregate.queries), which asks PostgreSQL. DuckDB has
each document in a column of type JSON, in memory, and as many threads as there are cores; it runs in this process. Before anything is
measured both must give the same answers. `ratio` is the server's rate against DuckDB's, the median of rounds in which they take turns.

Needs the package duckdb.
"""

import json
import math
import pathlib
import re

import duckdb

from .common import InProcess, Requests, compared, numbers, running, settled, shown

QUERIES = pathlib.Path(__file__).resolve().parents[2] / "crates/lab/src/study/aggregate.queries"
AMOUNT = "(j->>'amount')::DOUBLE"
SQL = {
    "filter_count": f"SELECT count(*) FROM d WHERE {AMOUNT} > 400",
    "group_1000_top_10": f"SELECT (j->>'user')::INT, sum({AMOUNT}) s, count(*) FROM d GROUP BY 1 ORDER BY 2 DESC LIMIT 10",
    "group_30000": f"SELECT (j->>'shop')::INT, max({AMOUNT}) FROM d GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 10",
    "unwind_group": "SELECT t, count(*) FROM (SELECT unnest((j->'tags')::VARCHAR[]) t FROM d) GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 10",
    "lookup_third": "SELECT (s.j->>'region')::INT, sum((d.j->>'amount')::DOUBLE) FROM d JOIN s ON s.id = (d.j->>'shop')::INT "
    "WHERE d.id < {third} GROUP BY 1",
    "window_running_sum": f"SELECT max(r) FROM (SELECT sum({AMOUNT}) OVER (PARTITION BY (j->>'user')::INT ORDER BY id) r FROM d)",
    "two_facets": f"WITH x AS MATERIALIZED (SELECT j->'place'->>'city' c, (j->>'day')::INT y, {AMOUNT} m FROM d) "
    "SELECT (SELECT count(*) FROM (SELECT c, count(*) FROM x GROUP BY 1)), (SELECT count(*) FROM (SELECT y, sum(m) FROM x GROUP BY 1))",
    "top_20": f"SELECT id, {AMOUNT} FROM d ORDER BY 2 DESC, 1 LIMIT 20",
}


def read(documents):
    """The commands that make the documents, and the pipelines by name."""
    text = QUERIES.read_text(encoding="utf-8")
    text = text.replace('":documents"', str(documents)).replace('":third"', str(documents // 3))
    made, asked = [], {}
    for head, body in re.findall(r"^(before|query \w+)[^\n]*\n(\{.*?\})$(?=\n(?:before|query|after|\n))", text, re.M | re.S):
        command = json.loads(body) | {"$db": "d"}
        if head == "before":
            made.append(command)
        else:
            asked[head.split()[1]] = command
    return made, asked


class DuckDb(InProcess):
    name = "DuckDB"

    def __init__(self, db, documents):
        self.connection = duckdb.connect()
        for table, coll in (("d", db.lab_aggregate_d), ("s", db.lab_aggregate_s)):
            self.connection.execute(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, j JSON)")
            rows = [(d["_id"], json.dumps(d)) for d in coll.find()]
            source = {"id": [i for i, _ in rows], "j": [j for _, j in rows]}
            self.connection.execute(f"INSERT INTO {table} SELECT unnest($id), unnest($j)", source)
        self.ready = {kind: [sql.format(third=documents // 3)] for kind, sql in SQL.items()}

    def answer(self, sql):
        return self.connection.execute(sql).fetchall()


def same(documents, rows):
    """Whether documents of an answer have the values of the rows, in whatever order of fields; those of groups in whatever order."""
    flat = lambda values: sorted((v for v in values if v is not None), key=repr)
    ours = sorted((flat(d.values()) for d in documents), key=repr)
    theirs = sorted((flat(r) for r in rows), key=repr)
    near = lambda a, b: a == b if isinstance(a, str) else math.isclose(a, b, rel_tol=1e-9)
    return len(ours) == len(theirs) and all(len(a) == len(b) and all(map(near, a, b)) for a, b in zip(ours, theirs))


def main(given):
    documents, rounds, seconds = numbers(given, 300_000, 5, 2)
    made, asked = read(documents)
    with running("--cache", "2GB") as server, server.client() as client:
        for command in made:
            client.d.command({k: v for k, v in command.items() if k != "$db"}, cursor={})
        settled(server)
        duck = DuckDb(client.d, documents)
        ours = Requests(server, {kind: [command] for kind, command in asked.items()})
        assert set(asked) == set(SQL), set(asked) ^ set(SQL)
        for kind in SQL:
            [found], rows = ours.found(kind), duck.answer(duck.ready[kind][0])
            assert same(found, rows), f"{kind}: {found[:3]} {rows[:3]}"
        shown(compared([ours, duck], SQL, rounds, seconds), documents=documents, duckdb=duckdb.__version__)
