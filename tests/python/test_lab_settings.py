"""The laboratory changes no setting of a server that it did not start, unless it is told to; then it sets back what it changed,
whatever ended it."""

import json
import os
import signal
import subprocess
import time

import pytest
from harness import BINARY
from mariadb import INSTALLED, mariadb

LAB = BINARY.with_name("pando-lab")
FLUSH = "SELECT @@innodb_flush_log_at_trx_commit"

pytestmark = pytest.mark.skipif(not (INSTALLED and LAB.exists()), reason="no MariaDB or no pando-lab here")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with mariadb(tmp_path_factory.mktemp("settings")) as running:
        running.sql("CREATE USER lab@'127.0.0.1'; GRANT ALL ON *.* TO lab@'127.0.0.1'")
        yield running


@pytest.fixture
def state(server, tmp_path):
    server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    return {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}


def words(server, out, *more):
    url = f"mysql://lab@127.0.0.1:{server.port}/lab"
    workload = ["run", "C.S3", "--records", "200", "--connections", "2", "--quiet", "--force", "--out", str(out), "--url", url]
    return [str(LAB), *workload, *more]


def run(server, state, out, *more):
    done = subprocess.run(words(server, out, "--operations", "200", *more), env=state, capture_output=True, text=True, timeout=120)
    return done, json.loads(out.read_text())["targets"][0]["settings"] if out.exists() else None


def test_a_server_is_measured_as_it_is(server, state, tmp_path):
    done, settings = run(server, state, tmp_path / "r.json", "--durability", "w1")
    assert done.returncode == 0, done.stderr
    assert settings["innodb_flush_log_at_trx_commit"] == server.sql(FLUSH) == "1"


def test_less_than_was_asked_for_is_refused(server, state, tmp_path):
    server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    done, _ = run(server, state, tmp_path / "r.json", "--durability", "majority")
    assert done.returncode == 2 and "--change-settings" in done.stderr
    assert server.sql(FLUSH) == "2"


def test_what_is_changed_is_said_and_set_back(server, state, tmp_path):
    done, settings = run(server, state, tmp_path / "r.json", "--durability", "w1", "--change-settings")
    assert done.returncode == 0, done.stderr
    assert settings["innodb_flush_log_at_trx_commit"] == "2", "what was in force"
    assert server.sql(FLUSH) == "1"
    assert not list((tmp_path / "state" / "pando-lab").iterdir())


def test_a_server_that_the_laboratory_started_is_its_own(server, state, tmp_path):
    with mariadb(tmp_path / "pando-lab-targets-x") as own:
        own.sql("CREATE USER lab@'127.0.0.1'; GRANT ALL ON *.* TO lab@'127.0.0.1'")
        done, settings = run(own, state, tmp_path / "r.json", "--durability", "w1")
        assert done.returncode == 0, done.stderr
        assert settings["innodb_flush_log_at_trx_commit"] == "2"


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_sets_it_back(server, state, tmp_path, end):
    long = words(server, tmp_path / "r.json", "--duration", "60s", "--durability", "w1", "--change-settings")
    process = subprocess.Popen(long, env=state, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 30
    while server.sql(FLUSH) != "2":
        assert time.monotonic() < until and process.poll() is None
    if end == signal.SIGINT:
        # A living run's change is its own.
        subprocess.run([str(LAB), "list"], env=state, capture_output=True, timeout=60, check=True)
        assert server.sql(FLUSH) == "2"
    process.send_signal(end)
    process.wait(60)
    if end == signal.SIGKILL:
        assert server.sql(FLUSH) == "2"
        done = subprocess.run([str(LAB), "list"], env=state, capture_output=True, text=True, timeout=60, check=True)
        assert "as it was before" in done.stderr
    assert server.sql(FLUSH) == "1"
    assert not list((tmp_path / "state" / "pando-lab").iterdir())
