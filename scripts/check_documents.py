#!/usr/bin/env python3
"""Checks the documents: each link within the project leads to a file that is there, each anchor to a heading that is there, each
fenced block is closed, blocks of JSON, Python and shell can be parsed, and flags of servers in them are flags that there are. Quick,
and without the network. (scripts/book.py looks at the links of the book, tests/python/test_quick_start.py runs programs.)

    scripts/check_documents.py [FILE…]"""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import reference

ROOT = Path(__file__).resolve().parent.parent
# A command that starts a server, up to its end.
SERVER = re.compile(r"^\s*(?:\$ )?(?:pando (?:serve|mongod|route)|mongod|mongos)\b((?:[^\n#|&;\\]|\\\n)*)", re.M)
LINK = re.compile(r"(?<!!)\[[^\]\[]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```+ *([\w-]*)")


def anchors(text):
    """The names that headings get, as the usual forges make them; the second of a name gets -1."""
    found = []
    for heading in re.findall(r"^#+ +(.*)$", text, re.M):
        name = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()).strip().replace(" ", "-")
        found.append(name if name not in found else f"{name}-{found.count(name)}")
    return found


def parts(text):
    """The prose without its blocks, and the blocks as (language, first line, text); an open block is named None."""
    prose, blocks, inside = [], [], None
    for number, line in enumerate(text.splitlines(), 1):
        if fence := FENCE.match(line):
            if inside is None:
                inside = (fence[1], number, [])
            else:
                blocks.append((inside[0], inside[1], "\n".join(inside[2])))
                inside = None
        elif inside is not None:
            inside[2].append(line)
        else:
            prose.append(line)
    if inside is not None:
        blocks.append((None, inside[1], ""))
    return "\n".join(prose), blocks


def mistakes_of_shell(block):
    """What bash does not understand, and flags that no server has."""
    tried = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
    if tried.returncode:
        yield tried.stderr.strip().splitlines()[0]
    for words in SERVER.findall(block):
        for flag in re.findall(r"(?:^|\s)--([A-Za-z][\w-]*)", words):
            if flag not in FLAGS and flag not in ("help", "version", "config"):
                yield f"no server has --{flag}"


def mistakes_of(path):
    text = path.read_text(encoding="utf-8")
    prose, blocks = parts(text)
    for target in LINK.findall(re.sub(r"`[^`\n]*`", "", prose)):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        to = (path.parent / name).resolve() if name else path
        if not to.exists():
            yield f"there is no {target}"
        elif anchor and to.suffix == ".md" and anchor not in anchors(parts(to.read_text(encoding="utf-8"))[0]):
            yield f"{target}: there is no such heading"
    for language, line, block in blocks:
        try:
            if language is None:
                yield f"line {line}: the block is not closed"
            elif language == "json":
                json.loads(block)
            elif language == "python":
                ast.parse(block)
            elif language in ("sh", "bash", "console"):
                # What a console shows of output is no shell.
                shown = re.findall(r"^\s*\$ ((?:.*\\\n)*.*)$", block, re.M)
                for mistake in mistakes_of_shell("\n".join(shown) if language == "console" else block):
                    yield f"line {line}: {mistake}"
        except (SyntaxError, ValueError) as error:
            yield f"line {line}: {language}: {error}"


FLAGS = reference.flag_names()


def pages_without_a_place():
    """The pages of docs that its table of contents does not name."""
    contents = (ROOT / "docs" / "SUMMARY.md").read_text(encoding="utf-8")
    return [path.name for path in sorted((ROOT / "docs").glob("*.md")) if path.name != "SUMMARY.md" and f"({path.name})" not in contents]


def main(names):
    if not names:
        listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], cwd=ROOT, check=True,
                                capture_output=True, text=True)
        names = [ROOT / name for name in listed.stdout.splitlines()]
    failed = 0
    for name in pages_without_a_place():
        print(f"docs/SUMMARY.md does not name {name}")
        failed = 1
    for path in map(Path, names):
        for mistake in mistakes_of(path.resolve()):
            print(f"{path}: {mistake}")
            failed = 1
    print(f"{len(names)} documents looked at")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
