#!/usr/bin/env python3
"""Writes the pages of reference from the code: docs/reference-options.md and docs/reference-errors.md.

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


def options():
    table = body("crates/pando/src/options.rs", "pub const FLAGS: &[Flag] = &[", "\n];")
    table = re.sub(r"^ *//.*$", "", table, flags=re.M)
    found = FLAG.findall(table)
    # A flag that the pattern does not see would be missing from the page in silence.
    expected = len(re.findall(r"\b(?:own|flag)\(", table))
    assert len(found) == expected, f"{expected - len(found)} of {expected} flags were not understood"
    rows = ""
    for _, names, key, takes, value, text in found:
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


def errors():
    table = body("crates/errors/src/lib.rs", "\ncodes! {", "\n}")
    table = re.sub(r"//.*$", "", table, flags=re.M)
    found = re.findall(r"(\w+) = (\d+)", table)
    assert len(found) == table.count("="), "some codes were not understood"
    rows = "".join(f"| {code} | `{name}` |\n" for name, code in sorted(found, key=lambda f: int(f[1])))
    return f"""# Errors

Made from `crates/errors/src/lib.rs` by `scripts/reference.py`.

The codes that have a name, as MongoDB numbers them. A code that is not here is one that MongoDB raises by its number: its name is
`Location` and the number. Drivers look at codes and labels, people at the message.

| code | name |
|---:|---|
{rows}"""


def main(check):
    stale = 0
    for name, text in {"reference-options.md": options(), "reference-errors.md": errors()}.items():
        path = ROOT / "docs" / name
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"docs/{name} is not what the code says: run scripts/reference.py")
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] == ["--check"]))
