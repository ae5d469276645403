"""pytest's fixtures: a server for the session, started when a test first asks for it."""

import pytest

from pandodb import Server


@pytest.fixture(scope="session")
def pando():
    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def pando_uri(pando):
    return pando.uri
