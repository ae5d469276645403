#!/usr/bin/env python3
"""Writes the pages of reference from the code: docs/reference-*.md, of options, errors, figures and limits.

    scripts/reference.py            writes them
    scripts/reference.py --check    says whether they are what the code says"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STRING = r'"((?:[^"\\]|\\.)*)"'
FLAG = re.compile(
    rf"\b(own|flag)\(\s*&\[([^\]]*)\],\s*{STRING},\s*(Switch|Fixed|Value)(?:\(\s*{STRING}\s*,?\s*\))?\s*,?\s*(?:{STRING}\s*,?\s*)?\)", re.S)


def body(path, begin, end):
    text = (ROOT / path).read_text(encoding="utf-8")
    start = text.index(begin) + len(begin)
    return text[start : text.index(end, start)]


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;")


def server_flags():
    table = body("crates/pando/src/options.rs", "pub const FLAGS: &[Flag] = &[", "\n];")
    table = re.sub(r"^ *//.*$", "", table, flags=re.M)
    found = FLAG.findall(table)
    # A flag that the pattern does not see would be missing from the page in silence.
    expected = len(re.findall(r"\b(?:own|flag)\(", table))
    assert len(found) == expected, f"{expected - len(found)} of {expected} flags were not understood"
    return found


def flag_names():
    return {name for _, names, *_ in server_flags() for name in re.findall(STRING, names)}


def options():
    rows = ""
    for _, names, key, takes, value, text in server_flags():
        shown = {"Value": " " + value, "Switch": "", "Fixed": ""}[takes]
        flags = ", ".join(f"`--{name}{shown}`" for name in re.findall(STRING, names))
        own = "For tests of the laboratory" if key.startswith("pando.") else "As mongod's option of this name"
        says = text or (f"Sets `{value}`" if takes == "Fixed" else own)
        rows += f"| {flags} | `{key}` | {cell(says)} |\n"
    return f"""# Options

Made from `crates/pando/src/options.rs` by `scripts/reference.py`.

Of `pando serve`, and of `pando mongod` under the same names. Flags go before the environment, the environment before the
configuration file. `--dbpath` is `PANDO_DBPATH` in the environment. The key is the place in a file of mongod's format. What has
no text of its own is an option that mongod has.

| flag | key | what it does |
|---|---|---|
{rows}"""


def error_codes():
    table = body("crates/errors/src/lib.rs", "\ncodes! {", "\n}")
    table = re.sub(r"//.*$", "", table, flags=re.M)
    found = re.findall(r"(\w+) = (\d+)", table)
    assert len(found) == table.count("="), "some codes were not understood"
    return found


def errors():
    rows = "".join(f"| {code} | `{name}` |\n" for name, code in sorted(error_codes(), key=lambda f: int(f[1])))
    return f"""# Errors

Made from `crates/errors/src/lib.rs` by `scripts/reference.py`.

The codes that have a name, as MongoDB numbers them. A code that is not here is one that MongoDB raises by its number: its name is
`Location` and the number. Drivers look at codes and labels, people at the message.

| code | name |
|---:|---|
{rows}"""


# What the figures of `serverStatus().pandodb` mean. They are those that crates/commands/src/diagnostic/server_status.rs writes, no
# more and no fewer: main says which is missing.
OWN_FIGURES = {
    "engine.sstBytes": "bytes of data files",
    "engine.memtableBytes": "bytes of writes that are not in data files yet",
    "engine.rowBytes": "bytes of whole records in the cache",
    "engine.rowShareBytes": "the share of the cache that whole records may have",
    "engine.lentBytes": "what the cache has lent to graphs of vectors and large operations",
    "engine.pendingCompactionBytes": "bytes that wait to be merged",
    "engine.runningFlushes": "writings of memory tables under way",
    "engine.runningCompactions": "mergings of data files under way",
    "engine.estimatedKeys": "keys in the engine, about",
    "engine.levelZeroFiles": "data files that were written and not merged",
    "engine.fullMemtables": "memory tables that wait to be written",
    "engine.paceMillisPerMB": "how long writers are held for each MB; 0: they are not",
    "engine.delayedBytesPerSecond": "the rate to which the engine itself holds writers; 0: it does not",
    "engine.writesStopped": "1 where the engine takes no writes until it has merged",
    "engine.hiddenKeysSkipped": "deleted or overwritten entries that scans stepped over",
    "engine.deadRanges": "ranges of keys that are known to be empty",
    "engine.batchedReads": "records that were read together with others",
    "engine.backgroundErrors": "failures of flushes and merges",
    "engine.snapshots": "views that are held, by cursors, transactions and backups",
    "engine.oldestSnapshotSecs": "the age of the oldest of them, in seconds",
    "log.bytes": "bytes that were written to the log since the start",
    "log.segments": "files of the log",
    "log.leases": "who has a part of the log kept for him",
    "log.lastIndex": "the last entry",
    "log.durableIndex": "the last entry that is on the disk",
    "replication.rollbacks": "how often this member took entries back",
    "writesSlowedForMoves": "writes of routers that waited for a move of their range",
    "locksAgainstWrites": "locks against all writes that are held",
    "moves.underWay": "moves that this process leads",
    "moves.done": "moves that came to their end",
    "moves.failed": "moves that failed",
    "moves.copiedDocuments": "documents that were copied",
    "moves.copiedBytes": "bytes that were copied",
    "moves.leftDocuments": "documents that are left to copy",
    "moves.leftBytes": "bytes that are left to copy",
    "moves.backlogDocuments": "documents that were touched since they were copied",
    "inFlight.limitBytes": "what long messages may hold together",
    "inFlight.bytes": "what they hold",
    "inFlight.waiting": "sockets that wait for room",
    "inFlight.waits": "how often one had to wait",
    "inFlight.givenUp": "messages that were given up, because they did not move",
    "eventLoops.held": "turns of event loops of more than a second",
    "eventLoops.longestHeldMs": "the longest of them",
    "stages.limitBytes": "what blocking stages may hold together",
    "stages.bytes": "what they hold",
    "operationMemory.limitBytes": "what operations that hold more than 1 MB may hold together",
    "operationMemory.bytes": "what they hold",
    "operationMemory.waiting": "operations that wait for such memory at this moment",
    "operationMemory.waits": "how often an operation has waited for such memory",
    "operationMemory.refused": "how often one was refused after that",
    "queryThreads.limit": "threads that one aggregation may use",
    "queryThreads.taken": "threads that aggregations use beside their own",
    "queryThreads.dividedPipelines": "aggregations that several threads ran",
    "stages.squeezed": "how often one was told to make do with less",
    "zoneMaps.maps": "zone maps in memory",
    "zoneMaps.sparedReads": "records that sorts had not to read",
    "cursors.limitBytes": "what cursors may hold of documents between batches, together",
    "cursors.bytes": "what they hold",
    "cursors.ownLimitBytes": "what cursors may take themselves, with their commands",
    "cursors.ownBytes": "what they take",
    "cursors.temporaryFiles": "temporary files of sorts, groups and cursors",
    "loops.offloaded": "commands that went from an event loop to a worker",
    "loops.workers": "workers",
    "loops.groups": "groups of writes",
    "loops.grouped": "writes in them",
    "loops.diskReads": "reads from the disk that event loops have asked for",
}
WRITES_FIGURE = re.compile(r'open_doc\(\s*"(\w+)"|\.(?:i64|int|f64|bool)\(\s*"(\w+)"|^\s*\("(\w+)", |(\.close\(\))|^    moves\((w), ', re.M)


def written_figures(path):
    """The paths of the numbers that `pandodb` writes, as the code opens and closes documents around them."""
    moves = set(re.findall(r'^ *\("(\w+)", ', body(path, "fn moves(", "\n}"), re.M))
    code = re.sub(r"^ *budgets\(w,.*$", lambda _: body(path, "fn budgets(", "\n}"), body(path, "fn pandodb(", "\n}"), count=1, flags=re.M)
    found, inside = set(), []
    for opened, field, _, closed, calls in WRITES_FIGURE.findall(code):
        if opened:
            inside.append(opened)
        elif closed:
            inside.pop()
        elif calls:
            found |= {f"moves.{name}" for name in moves}
        elif field:
            found.add(".".join([*inside[1:], field]))
    assert not inside and moves, "the code of pandodb was not understood"
    return found


def figures():
    path = "crates/commands/src/diagnostic/server_status.rs"
    written = written_figures(path)
    for name in sorted(written ^ OWN_FIGURES.keys()):
        raise SystemExit(f"scripts/reference.py: OWN_FIGURES and {path} differ in pandodb.{name}")
    code = "crates/commands/src/monitoring/prometheus.rs"
    meanings = re.findall(rf"{STRING},\s*{STRING}", body(code, "const MEANINGS: &[(&str, &str)] = &[", "\n];"))
    growing = re.findall(STRING, body(code, "const GROWING: &[&str] = &[", "\n];"))
    parts = re.findall(STRING, body(code, "const GROWING_PARTS: &[&str] = &[", "\n];"))
    assert len(meanings) > 10 and len(growing) > 10 and parts, "the figures were not understood"
    rows = "".join(f"| `{name}` | {cell(says)} |\n" for name, says in meanings)
    own = "".join(f"| `pando_pandodb_{name.replace('.', '_')}` | {cell(says)} |\n" for name, says in OWN_FIGURES.items())
    return f"""# Figures

Made from `{code}` and `{path}` by `scripts/reference.py`.

`--metrics PORT` serves them at `/metrics` for Prometheus, at servers and routers ([operating](operating.md#figures)). All numbers of
`serverStatus` are there, under their path: `opcounters.insert` is `pando_opcounters_insert`. Characters that are no letter and no
digit become `_`; true is 1. What MongoDB's manual says of a field of `serverStatus` holds for it.

## Beside those of serverStatus

Those of `pando_replication_member_…` have the label `member`.

| figure | what it is |
|---|---|
{rows}
## Of serverStatus, which MongoDB has not

| figure | what it is |
|---|---|
{own}
## Counters

These only grow while the process runs; `rate()` is for them. All others are gauges, or untyped where it is not known.

- {", ".join(f"`{part}…`" for part in parts)}
- {", ".join(f"`{name}`" for name in growing)}
"""


# What is limited, the file and the constant that say how far, the unit, and the error or what happens then. A constant that is not
# there any more fails.
LIMITS = [
    ("Documents and messages", [
        ("a document", "bson/src/lib.rs", "MAX_DOC_BYTES", "bytes", "BSONObjectTooLarge (10334)"),
        ("levels of nesting of a document", "bson/src/lib.rs", "MAX_DEPTH", "", "Overflow (15)"),
        ("a message", "wire/src/lib.rs", "MAX_MESSAGE_BYTES", "bytes", "the connection is closed"),
        ("statements of a write command", "commands/src/crud/batch.rs", "MAX_STATEMENTS", "", "InvalidLength (16); drivers cut longer ones"),
        ("an entry of the log, a transaction too", "oplog/src/frame.rs", "MAX_FRAME_BYTES", "bytes", "the write is refused"),
    ]),
    ("Collections and indexes", [
        ("bytes of a namespace, `database.collection`", "commands/src/ddl/convert_to_capped.rs", "MAX_NAMESPACE_BYTES", "", "InvalidNamespace (73)"),
        ("indexes of a collection", "commands/src/ddl/index_spec.rs", "MAX_INDEXES", "", "CannotCreateIndex (67)"),
        ("search indexes of a collection", "commands/src/ddl/search_indexes.rs", "MOST_INDEXES", "", "BadValue (2)"),
        ("fields of an index", "query/src/index_keys/mod.rs", "MAX_FIELDS", "", "CannotCreateIndex (67)"),
        ("keys of one document in one index", "query/src/index_keys/mod.rs", "MOST_BYTES", "bytes", "CannotBuildIndexKeys (201)"),
        ("terms of one document in a text index", "query/src/index_keys/text.rs", "MOST_TERMS", "", "16732"),
        ("views upon views", "catalog/src/view_definition.rs", "MAX_DEPTH", "", "ViewDepthLimitExceeded (165)"),
        ("measurements in a bucket of a time series", "time_series/src/lib.rs", "MAX_ROWS", "", "another bucket"),
        ("bytes of measurements in a bucket", "time_series/src/lib.rs", "MAX_BYTES", "bytes", "another bucket"),
    ]),
    ("Queries", [
        ("stages of a pipeline", "query/src/pipeline/parse.rs", "MAX_STAGES", "", "7749501"),
        ("parts of a path in a projection", "query/src/transform/parse.rs", "MAX_DEPTH", "", "Overflow (15)"),
        ("parts of a path in an expression", "query/src/expr/path.rs", "MAX_COMPONENTS", "", "Overflow (15)"),
        ("a pattern of a regular expression", "query/src/filter/regex.rs", "MAX_PATTERN_BYTES", "bytes", "51091"),
        ("steps of a match from one place", "pcre/src/lib.rs", "MOST_STEPS", "", "no match; 51156 in an expression"),
        ("documents that one `$densify` makes", "query/src/pipeline/densify.rs", "MAX_MADE", "", "5897900"),
        ("a blocking stage", "executor/src/read/sorter.rs", "MEMORY_LIMIT", "bytes", "temporary files, or 292"),
        ("one value of an expression", "query/src/expr/values.rs", "MAX_INTERMEDIATE_BYTES", "bytes", "ExceededMemoryLimit (146)"),
        ("what one operation allocates, beside stages", "executor/src/operation_memory.rs", "MOST_OF_ONE", "bytes", "ExceededMemoryLimit (146)"),
        ("what all allocate that hold more than 1 MB", "executor/src/operation_memory.rs", "LIMIT", "bytes", "one goes on, others wait; 146 after 30 s"),
    ]),
    ("Search", [
        ("dimensions of a vector", "search/src/vector_definition.rs", "MOST_DIMENSIONS", "", "refused"),
        ("clauses of a search", "search/src/operator.rs", "MOST_CLAUSES", "", "refused"),
        ("facets of a search", "search/src/facet.rs", "MOST_FACETS", "", "refused"),
        ("buckets of a facet", "search/src/facet.rs", "MOST_BUCKETS", "", "refused"),
        ("paths of an index", "search/src/terms.rs", "MOST_PATHS", "", "further paths are not indexed"),
        ("elements of `nestedRoot` of one document", "search/src/nested.rs", "MOST_ELEMENTS", "", "further ones are not indexed"),
    ]),
    ("Sessions, sets and clusters", [
        ("a transaction's writes (`transactionSizeLimitBytes`)", "executor/src/key_locks.rs", "MOST_BYTES", "bytes", "TransactionTooLargeForCache (388)"),
        ("sessions at a time (`maxSessions`)", "session/src/sessions.rs", "MAX_SESSIONS", "", "TooManyLogicalSessions (261)"),
        ("minutes that a session lives unused", "session/src/sessions.rs", "SESSION_TIMEOUT_MINUTES", "", "it ends"),
        ("members of a set", "replication/src/config/mod.rs", "MAX_MEMBERS", "", "BadValue (2)"),
        ("members of a set that vote", "replication/src/config/mod.rs", "MAX_VOTING_MEMBERS", "", "BadValue (2)"),
        ("fields of a shard key", "sharding/src/shard_key.rs", "MAX_FIELDS", "", "BadValue (2)"),
        ("chunks of a new hashed collection", "router/src/admin/collections.rs", "MAX_INITIAL_CHUNKS", "", "InvalidOptions (72)"),
        ("bytes of a key file", "auth/src/key_file.rs", "MOST", "", "the server does not start"),
    ]),
]


def constant(file, name):
    """The value of a constant: a number, or shifts and products of numbers and of bson's bound of a document."""
    text = (ROOT / "crates" / file).read_text(encoding="utf-8")
    found = re.findall(rf"^ *(?:pub(?:\([a-z]+\))? )?const {name}: \w+ = ([^;]+);", text, re.M)
    assert len(found) == 1, f"crates/{file} has {len(found)} constants {name}"
    terms = found[0].replace("_", "")
    assert re.fullmatch(r"[0-9 *<()]+", terms), f"{name} = {found[0]} was not understood"
    return eval(terms)


def shown(n, unit):
    if unit == "bytes" and n % 1_000_000 != 0:
        for size, name in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")):
            if n % size == 0:
                return f"{n // size} {name}"
    return f"{n:,} {unit}".strip()


def limits():
    text, codes = "", {name: code for name, code in error_codes()}
    for part, rows in LIMITS:
        text += f"\n## {part}\n\n| what | most | what happens then | where |\n|---|---:|---|---|\n"
        for what, file, name, unit, then in rows:
            for error, code in re.findall(r"(\w+) \((\d+)\)", then):
                assert codes.get(error) == code, f"{error} is not {code}"
            text += f"| {what} | {shown(constant(file, name), unit)} | {then} | `{name}` |\n"
    return f"""# Limits

Made by `scripts/reference.py` from the constants named in the last column.

Those of memory, and the parameters that change them, are in [memory](memory.md#limits), with what all clients together may
take. MB are of 1,048,576 bytes. A code alone is the error that MongoDB raises by that number.
{text}"""


def main(check):
    stale = 0
    pages = {"options": options(), "errors": errors(), "metrics": figures(), "limits": limits()}
    for name, text in {f"reference-{name}.md": text for name, text in pages.items()}.items():
        path = ROOT / "docs" / name
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"docs/{name} is not what the code says: run scripts/reference.py")
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] == ["--check"]))
