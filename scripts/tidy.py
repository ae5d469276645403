#!/usr/bin/env python3
"""Checks the style: words that comments and names do not use, the length of functions, and one style of modules. Quick, and without
a compiler.

    scripts/tidy.py            fails above the bounds
    scripts/tidy.py --counts   prints the counts and their places

The words are those of the tables "Instead" and "In names" of docs/glossary.md. Bounds are counts of the day they were written: they only fall.
Text in backticks does not count, nor do strings."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Uses that are still there; a word that is not named has none.
STILL_THERE = {"whoever": 1, "nobody": 1, "so long": 3, "so often": 1}
# Lines of a function outside of tests, and how many are longer.
LONGEST, LONGER_FUNCTIONS = 100, 1
NAMES_STILL_THERE = {"nobody": 1, "somebody": 1, "told": 1, "asked": 1, "said": 1}
NAME = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?(?:default |const |async |unsafe |extern \"[^\"]*\" )*(?:fn|struct|enum|trait|type|const|static|def|class) (\w+)", re.M)
HEAD = re.compile(r"^(\s*)(?:pub(?:\([^)]*\))? )?(?:default |const |async |unsafe |extern \"[^\"]*\" )*fn \w+")


def sources(folder, ending):
    return sorted(p for p in (ROOT / folder).rglob(f"*.{ending}") if not {"target", "node_modules"} & set(p.parts))


def table(heading):
    """Rows of a table of the glossary, by its first line."""
    rows = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").split(heading)[1].split("\n\n")[0]
    return [[cell.strip().lower() for cell in row.split("|")[1:-1]] for row in rows.splitlines() if row.startswith("| ")]


def unwanted():
    """The first column of the glossary's table of words that are not used."""
    return [row[0] for row in table("| not | but |")]


def comments():
    """Paragraphs of comments, since words may be broken over lines: (file:line, text)."""
    for folder, ending, mark in [("crates", "rs", "//"), ("tests", "rs", "//"), ("tests", "py", "#"), ("scripts", "py", "#")]:
        for path in sources(folder, ending):
            begins, words = 0, []
            for number, line in enumerate([*path.read_text(encoding="utf-8").splitlines(), ""], 1):
                text = line.lstrip()
                if text.startswith(mark):
                    begins = begins or number
                    words += " ".join(text.split("`")[::2]).lstrip("/!#").lower().split()
                elif begins:
                    yield f"{path.relative_to(ROOT)}:{begins}", " ".join(words)
                    begins, words = 0, []


def uses():
    """Places by word."""
    found = {word: [] for word in unwanted()}
    assert len(found) > 10, "the glossary's table is not found"
    all_comments = list(comments())
    assert len(all_comments) > 5000, "comments are not found"
    for place, text in all_comments:
        for word, places in found.items():
            places += [place] * len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", text))
    return found


def names():
    """Places by word of those that names do not have."""
    where = {row[0]: row[1] for row in table("| not | where | but |")}
    found, seen = {word: [] for word in where}, 0
    for folder, ending in [("crates", "rs"), ("tests", "rs"), ("tests", "py"), ("scripts", "py")]:
        for path in sources(folder, ending):
            for name in NAME.findall(path.read_text(encoding="utf-8")):
                seen += 1
                words = [w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)]
                for word in set(words) & set(where):
                    if where[word] == "within" or len(words) == 1:
                        found[word].append(f"{path.relative_to(ROOT)}: {name}")
    assert len(found) > 10 and seen > 10_000, "names are not found"
    return found


def modules_beside_folders():
    """Files that should be the `mod.rs` of the folder beside them."""
    return [str(p.relative_to(ROOT)) for p in sources("crates", "rs") if p.with_suffix("").is_dir()]


def long_functions():
    tests = {"tests", "examples", "benches"}
    found, seen = [], 0
    for path in sources("crates", "rs"):
        if tests & set(path.parts) or path.stem == "tests" or path.stem.endswith("_tests"):
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        pairs = zip(lines, lines[1:])
        body = next((i for i, (a, b) in enumerate(pairs) if a.strip() == "#[cfg(test)]" and b.lstrip().startswith("mod tests {")), len(lines))
        for i, line in enumerate(lines[:body]):
            head = HEAD.match(line)
            if not head or line.rstrip().endswith(";"):
                continue
            seen += 1
            end = next((j for j in range(i, len(lines)) if lines[j] == head[1] + "}"), i)
            if end - i + 1 > LONGEST:
                found.append(f"{path.relative_to(ROOT)}:{i + 1}: {end - i + 1} lines")
    assert seen > 5000, "functions are not found"
    return found


def main():
    found, named, functions = uses(), names(), long_functions()
    if "--counts" in sys.argv:
        for word, places in [*found.items(), *named.items()]:
            print(f"{len(places):4} {word}", *places[:5])
        print(f"{len(functions):4} functions over {LONGEST} lines", *functions)
        return 0
    mistakes = []
    for word, places in found.items():
        if len(places) > STILL_THERE.get(word, 0):
            allowed = STILL_THERE.get(word, 0)
            mistakes.append(f'comments say "{word}" {len(places)} times, {allowed} allowed: name the subject, as docs/glossary.md says: {places}')
    for word, places in named.items():
        if len(places) > NAMES_STILL_THERE.get(word, 0):
            allowed = NAMES_STILL_THERE.get(word, 0)
            mistakes.append(f'{len(places)} names have "{word}", {allowed} may: name it as docs/glossary.md says: {places}')
    if beside := modules_beside_folders():
        mistakes.append(f"modules beside their folders, not mod.rs within: {beside}")
    if len(functions) > LONGER_FUNCTIONS:
        mistakes.append(f"{len(functions)} functions over {LONGEST} lines, {LONGER_FUNCTIONS} allowed: {functions}")
    for mistake in mistakes:
        print(mistake)
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
