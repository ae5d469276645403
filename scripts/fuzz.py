"""Runs a target that scripts/fuzz.sh has built: gives it its corpus and its words, counts its processor time, keeps its ledger.

A packed corpus (tests/fuzz/corpus/TARGET) is inputs one after the other, each behind its length as u32 little-endian.
"""

import hashlib
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = pathlib.Path(os.environ["FUZZ_DIR"])
# Inputs of the query language may stand for any of these.
LANGUAGE = ["pipelines", "expressions", "updates", "filters", "shapes", "projections"]
LONGEST = {"pipelines": 2048, "wire": 512, "log": 300, "keys": 256, "entries": 256}


def packed(path: pathlib.Path) -> list[bytes]:
    data, out = path.read_bytes() if path.exists() else b"", []
    while data:
        (n,) = struct.unpack_from("<I", data)
        out.append(data[4 : 4 + n])
        data = data[4 + n :]
    return out


def pack(inputs: list[bytes], path: pathlib.Path) -> None:
    inputs = sorted(set(inputs), key=lambda i: (len(i), i))
    path.write_bytes(b"".join(struct.pack("<I", len(i)) + i for i in inputs))
    print(f"{path}: {len(inputs)} inputs, {path.stat().st_size} bytes")


def seeds(target: str) -> list[bytes]:
    """The packed corpus, the seeds of the blind tests, and all texts in our tests of the language."""
    out = packed(ROOT / "tests/fuzz/corpus" / target)
    if target in LANGUAGE:
        for path in (ROOT / "tests/fuzz/seeds").glob("*.json"):
            out += [line.encode() for line in path.read_text().splitlines()]
        for path in (ROOT / "crates/query/src").rglob("*.rs"):
            text = path.read_text()
            found = re.findall(r'r#"(.*?)"#', text, re.S)
            found += [t.replace('\\"', '"') for t in re.findall(r'"((?:[{\[])(?:[^"\\\n]|\\")*)"', text)]
            for t in found:
                t = t.strip()
                if t[:1] in ("{", "["):
                    out.append(t.encode())
                    if target == "pipelines" and t.startswith('{"$'):
                        # A stage, or an expression.
                        out.append(b'{"pipeline": [' + t.encode() + b"]}")
                        out.append(b'{"pipeline": [{"$project": {"r": ' + t.encode() + b"}}]}")
    return [s for s in out if len(s) <= LONGEST.get(target, 1024)]


def words(path: pathlib.Path) -> None:
    """The names in our own tables: every literal in the language's source that looks like one."""
    found = set()
    for source in (ROOT / "crates/query/src").rglob("*.rs"):
        if "tests" in source.name:
            continue
        text = source.read_text().split("#[cfg(test)]\nmod tests {")[0]
        found.update(re.findall(r'"(\$[a-zA-Z]{2,40}|[a-z][a-zA-Z0-9]{1,24})"', text))
    path.write_text("".join(f'"{w}"\n' for w in sorted(found)))


def put(inputs: list[bytes], folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i in inputs:
        (folder / hashlib.sha1(i).hexdigest()).write_bytes(i)


def cpu_seconds(pid: int) -> float:
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def options(target: str) -> list[str]:
    dictionary = WORK / "words.dict"
    words(dictionary)
    os.environ.update(FUZZ_TARGET=target, FUZZ_WORDS=str(dictionary))
    # The targets bound themselves by processor time and by what they allocate (guided/src/main.rs); these are for the rest.
    bounds = ["-timeout=1800", "-rss_limit_mb=4000", "-detect_leaks=0", "-reload=0", "-print_final_stats=1"]
    longest = [f"-max_len={LONGEST.get(target, 1024)}", f"-artifact_prefix={WORK}/finding-{target}-"]
    return bounds + longest + ([f"-dict={dictionary}"] if target in LANGUAGE else [])


def run(target: str, binary: str, seconds: float, more: list[str]) -> int:
    folder = WORK / f"corpus-{target}"
    put(seeds(target), folder)
    said = WORK / f"said-{target}.txt"
    started, used, asked = time.time(), 0.0, False
    with open(said, "wb") as out:
        child = subprocess.Popen([binary, str(folder), *options(target), *more], stderr=out)
        while child.poll() is None:
            used = max(used, cpu_seconds(child.pid))
            if used >= seconds and not asked:
                asked = True
                child.send_signal(signal.SIGUSR1)
            time.sleep(0.5)
    text = said.read_text(errors="replace")
    executions = max(int(a or b) for a, b in re.findall(r"^#(\d+)\s|number_of_executed_units: (\d+)", text, re.M) or [("0", "")])
    print(*[line for line in text.splitlines() if not re.search(r"\s(NEW|REDUCE|pulse)\s|NEW_FUNC", line)][-60:], sep="\n")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    dirty = subprocess.run(["git", "status", "--porcelain", "crates"], cwd=ROOT, capture_output=True, text=True).stdout
    row = [
        time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(started)),
        commit + ("+" if dirty else ""),
        target,
        f"{used:.0f}",
        str(executions),
        "none" if child.returncode == 0 else f"exit {child.returncode}",
    ]
    with open(WORK / "ledger.tsv", "a") as ledger:
        print(*row, sep="\t", file=ledger)
    print("run:", *row)
    return child.returncode


def save(target: str, binary: str) -> int:
    folder, small = WORK / f"corpus-{target}", WORK / f"small-{target}"
    for old in small.glob("*"):
        old.unlink()
    small.mkdir(exist_ok=True)
    # The folder that grows may have lost inputs of the packed corpus.
    first = WORK / f"packed-{target}"
    for old in first.glob("*"):
        old.unlink()
    put(packed(ROOT / "tests/fuzz/corpus" / target), first)
    merge = ["-set_cover_merge=1", "-use_counters=0", *options(target), str(small), str(first), str(folder)]
    done = subprocess.run([binary, *merge], check=False)
    if done.returncode == 0:
        pack([p.read_bytes() for p in small.iterdir()], ROOT / "tests/fuzz/corpus" / target)
    return done.returncode


def main() -> int:
    target, binary, *rest = sys.argv[1:]
    match rest:
        case ["save"]:
            return save(target, binary)
        case ["replay", *files]:
            return subprocess.run([binary, *options(target), *files], check=False).returncode
        case [seconds, *more]:
            return run(target, binary, float(seconds), more)
        case _:
            return run(target, binary, 600, [])


sys.exit(main())
