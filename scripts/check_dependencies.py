#!/usr/bin/env python3
"""Holds the dependencies to deny.toml: licences, sources and doubled crates. `cargo deny check` reads the same file and looks at
advisories as well, but has to be compiled or fetched first; this needs cargo and Python 3.11 only.

    scripts/check_dependencies.py"""

import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"


def allows(expression, allowed):
    """Whether a licence expression can be met by allowed licences. Old ones have a slash for OR."""
    words = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))

    def either():
        met = both()
        while words and words[0] == "OR":
            words.pop(0)
            met = both() or met
        return met

    def both():
        met = one()
        while words and words[0] == "AND":
            words.pop(0)
            met = one() and met
        return met

    def one():
        name = words.pop(0)
        if name == "(":
            met = either()
            assert words.pop(0) == ")", expression
            return met
        if words and words[0] == "WITH":
            name = " ".join([name, words.pop(0), words.pop(0)])
        return name in allowed

    met = either()
    assert not words, f"not a licence expression: {expression}"
    return met


def mistakes_of(packages, rules):
    allowed = set(rules["licenses"]["allow"])
    skipped = {(entry["name"], entry["version"].lstrip("=")) for entry in rules["bans"]["skip"]}
    versions, ours = defaultdict(set), set()
    for package in packages:
        name = f"{package['name']} {package['version']}"
        if package["license"] is None or not allows(package["license"], allowed):
            yield f"{name}: the licence {package['license']} is not allowed"
        if package["source"] is None:
            ours.add(package["name"])
            continue
        if package["source"] != REGISTRY:
            yield f"{name} comes from {package['source']}"
        versions[package["name"]].add(package["version"])
    for name, found in sorted(versions.items()):
        left = {version for version in found if (name, version) not in skipped}
        if len(left) > 1:
            yield f"{name} is there in versions {', '.join(sorted(left))}"
    for name, version in sorted(skipped):
        # One of ours may have the name of another one: `cargo deny` counts both.
        if version not in versions[name] or len(versions[name]) + (name in ours) == 1:
            yield f"deny.toml: {name} {version} is not double any more"


def check_the_check():
    """The parser answers known expressions as it must: it is short, and nothing else tries it."""
    for expression, met in [("MIT", True), ("GPL-3.0", False), ("GPL-3.0 OR MIT", True), ("MIT AND GPL-3.0", False),
                            ("(GPL-3.0 OR MIT) AND Zlib", True), ("Apache-2.0 WITH X", False), ("GPL-3.0/MIT", True)]:
        assert allows(expression, {"MIT", "Zlib", "Apache-2.0"}) is met, expression


def main():
    check_the_check()
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    said = subprocess.run(["cargo", "metadata", "--format-version", "1", "--locked"], cwd=ROOT, check=True, capture_output=True)
    packages = json.loads(said.stdout)["packages"]
    mistakes = list(mistakes_of(packages, rules))
    print("\n".join([*mistakes, f"{len(packages)} packages looked at"]))
    return bool(mistakes)


if __name__ == "__main__":
    sys.exit(main())
