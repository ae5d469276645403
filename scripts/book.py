#!/usr/bin/env python3
"""Makes the book of the documents (mdBook), and looks whether each link of it leads somewhere.

    scripts/book.py [OUT]        OUT/html is the book; OUT is target/book by itself

docs/SUMMARY.md is its table of contents. Pages of the project's root that it names are taken in, and the decisions as pages below
theirs. A link to a page leads to where that lies in the book; a link to a file of the source leads to the repository, if PANDO_REPOSITORY
says where that is (https://HOST/OWNER/NAME), and is plain text otherwise. Needs mdbook (`cargo install mdbook`)."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
CODE = re.compile(r"(^ *```.*?^ *```[^\n]*$|`[^`\n]+`)", re.M | re.S)


def pages():
    """Each page's file, and its name in the book."""
    named = [(DOCS / target).resolve() for _, target in LINK.findall((DOCS / "SUMMARY.md").read_text(encoding="utf-8"))]
    found = {}
    for path in [*named, *sorted((DOCS / "decisions").glob("*.md"))]:
        if path == ROOT / "README.md":
            found[path] = "index.md"
        elif path.is_relative_to(DOCS):
            # mdBook calls a README index.html, and does not change the links to it.
            found[path] = str(path.relative_to(DOCS)).replace("README.md", "index.md")
        else:
            found[path] = "project/" + "-".join(path.relative_to(ROOT).parts).lower()
    return found


def moved(text, path, there):
    """The page with its links as they have to be in the book; links in code are none."""
    source, here = os.environ.get("PANDO_REPOSITORY"), Path(there[path]).parent

    def link(match):
        label, target = match.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return match[0]
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve()
        if file in there:
            return f"[{label}]({os.path.relpath(there[file], here)}{'#' + anchor if anchor else ''})"
        if file.is_relative_to(DOCS / "figures"):
            return f"[{label}]({os.path.relpath(file.relative_to(DOCS), here)})"
        return f"[{label}]({source}/blob/main/{file.relative_to(ROOT)})" if source else label

    parts = CODE.split(text)
    # A link whose label is code is cut by it: put such labels back before links are looked for.
    kept = []
    for n, part in enumerate(parts):
        if n % 2:
            kept.append(part)
            parts[n] = f"\0{len(kept) - 1}\0"
    text = LINK.sub(link, "".join(parts))
    return re.sub(r"\0(\d+)\0", lambda m: kept[int(m[1])], text)


def contents(there):
    """The table of contents, with the decisions below their page."""
    summary = moved((DOCS / "SUMMARY.md").read_text(encoding="utf-8"), DOCS / "SUMMARY.md", there | {DOCS / "SUMMARY.md": "SUMMARY.md"})
    below = ""
    for path in sorted((DOCS / "decisions").glob("2*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        below += f"\n    - [{title}](decisions/{path.name})"
    entry = "- [Decisions](decisions/index.md)"
    assert entry in summary
    return summary.replace(entry, entry + below)


def write(out):
    there = pages()
    src = out / "src"
    shutil.rmtree(out, ignore_errors=True)
    for path, name in there.items():
        to = src / name
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(moved(path.read_text(encoding="utf-8"), path, there), encoding="utf-8")
    shutil.copytree(DOCS / "figures", src / "figures")
    (src / "SUMMARY.md").write_text(contents(there), encoding="utf-8")
    (out / "book.toml").write_text(
        '[book]\ntitle = "PandoDB"\nlanguage = "en"\n\n[build]\nbuild-dir = "html"\n\n[output.html]\nno-section-label = true\n', encoding="utf-8"
    )


class Page(HTMLParser):
    """The links and the places of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.places = set(), set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.places |= {value for name in ("id", "name") if (value := attributes.get(name))}
        for name in ("href", "src"):
            if attributes.get(name) and tag != "base":
                self.links.add(attributes[name])


def mistakes(html):
    made = {path: Page(path) for path in sorted(html.rglob("*.html"))}
    for path, page in made.items():
        # The page of all pages, for printing, has links of each, and what is for a search that does not find.
        if path.name in ("print.html", "404.html", "toc.html"):
            continue
        for link in sorted(page.links):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            to = (path.parent / unquote(name)).resolve() if name else path
            if not to.exists():
                yield f"{path.relative_to(html)}: there is no {link}"
            elif anchor and to in made and unquote(anchor) not in made[to].places:
                yield f"{path.relative_to(html)}: {link}: there is no such place"
    assert len(made) > 50, "the book has not all pages"


def main(out):
    out = Path(out).resolve()
    write(out)
    subprocess.run(["mdbook", "build", str(out)], check=True)
    found = list(mistakes(out / "html"))
    print("\n".join([*found, f"the book is {out / 'html' / 'index.html'}"]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:] or [ROOT / "target" / "book"])))
