#!/usr/bin/env python3
"""Measurements of a built server: what its work costs, and how fast it is.

    .venv/bin/python scripts/measure.py                          what there is
    .venv/bin/python scripts/measure.py NAME --help              what one measures, and its arguments
    .venv/bin/python scripts/measure.py NAME PANDO [ARGUMENT…]   runs it on the server's program PANDO

Each is a module of scripts/measurements. Instructions are counted by valgrind and carry no noise of the machine; times want a quiet one.
All need what tests/requirements.txt names.
"""

import ast
import importlib
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent


def main(words):
    pages = {p.stem: ast.get_docstring(ast.parse(p.read_text(encoding="utf-8"))) for p in sorted((HERE / "measurements").glob("[a-z]*.py"))}
    pages.pop("common")
    name, *given = words or [""]
    if name not in pages:
        print(__doc__)
        for name, page in pages.items():
            print(f"{name:19} {page.splitlines()[0]}")
        return bool(words)
    if "--help" in given or "-h" in given:
        print(pages[name])
        return 0
    if given and os.path.isfile(given[0]):
        os.environ["PANDO_BIN"] = os.path.abspath(given[0])
    sys.path[:0] = [str(HERE), str(HERE.parent / "tests/python")]
    return importlib.import_module(f"measurements.{name}").main(given)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
