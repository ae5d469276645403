"""The programs of the quick start, in each language of its pages, against a server: what a page promises they print."""

import contextlib
import io
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["quick-start.md", "quick-start-zh.md"])
def test_the_program_prints_what_the_page_says(page, server, client):
    text = (DOCS / page).read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", text, re.S)
    promised = re.search(r"`(\[\{.*?\}\])`[^`]*`(\d+)`", text).groups()
    assert "mongodb://localhost:27017" in program and "client.shop" in program
    program = program.replace("mongodb://localhost:27017", f"mongodb://127.0.0.1:{server.port}").replace("client.shop", "client.quick_start")
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(program, {})
    finally:
        client.drop_database("quick_start")
    assert printed.getvalue().splitlines() == list(promised)
