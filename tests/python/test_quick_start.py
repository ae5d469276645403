"""The programs of the quick start, in each language of its pages, and of the page for application developers, against a server: what a
page promises they print."""

import contextlib
import io
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["quick-start.md", "quick-start-zh.md"])
def test_the_program_prints_what_the_page_says(page, server, client):
    text = (DOCS / page).read_text(encoding="utf-8")
    promised = re.search(r"`(\[\{.*?\}\])`[^`]*`(\d+)`", text).groups()
    assert printed_by(text, "shop", server, client) == list(promised)


def test_payments_of_the_page_for_developers(server, client):
    text = (DOCS / "applications.md").read_text(encoding="utf-8")
    assert printed_by(text, "bank", server, client) == [re.search(r"It prints `(.*?)`", text)[1]]


def printed_by(text, database, server, client):
    """The lines that the one program of a page prints."""
    (program,) = re.findall(r"```python\n(.*?)```", text, re.S)
    assert "mongodb://localhost:27017" in program and f"client.{database}" in program
    program = program.replace("mongodb://localhost:27017", f"mongodb://127.0.0.1:{server.port}")
    program = program.replace(f"client.{database}", "client.quick_start")
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(program, {})
    finally:
        client.drop_database("quick_start")
    return printed.getvalue().splitlines()
