"""Fixtures: one server for all tests that leave it as it was, one for each test that does not."""

import itertools

import pytest

from certificates import Authority
from encrypted import Secure
from harness import BINARY, Server, held_loops

numbers = itertools.count(1)


def pytest_configure(config):
    if not BINARY.exists():
        pytest.exit(f"there is no server at {BINARY}: build it (cargo build), or name it with PANDO_BIN", returncode=3)


@pytest.fixture(scope="session", autouse=True)
def loops_are_free():
    """After all servers have ended: none of them has held an event loop for long. Each entry names the test."""
    yield
    assert not held_loops, f"event loops were held: {held_loops}"


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The shared server."""
    with Server(tmp_path_factory.mktemp("shared") / "data") as running:
        yield running
        assert running.running(), f"the shared server died:\n{running.tail()}"


@pytest.fixture(scope="session")
def client(server):
    with server.client() as connected:
        yield connected


@pytest.fixture
def db(client):
    """A database of the test's own."""
    database = client[f"test_{next(numbers)}"]
    yield database
    client.drop_database(database.name)


@pytest.fixture
def coll(db):
    """An empty collection that does not exist yet."""
    return db["things"]


@pytest.fixture
def new_server(tmp_path):
    """Starts servers that the test may kill; ends the remaining ones."""
    started = []

    def start(*options, path=None, **more):
        server = Server(path or tmp_path / "data", *options, **more)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.kill()


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def secure(tmp_path):
    """Starts servers that want TLS."""
    started = []

    def start(*options):
        server = Secure(tmp_path / "data", *options)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.kill()


@pytest.fixture
def wire(server):
    with server.wire() as connected:
        yield connected
