"""The binary under the name of `mongod`: what scripts and harnesses that launch one do with it."""

import os
import signal
import subprocess

import bson
import pytest

from harness import BINARY, Wire, free_port, until


@pytest.fixture
def mongod(tmp_path):
    link = tmp_path / "mongod"
    link.symlink_to(BINARY)
    return link


def gone(pid):
    """Whether a process that is not our child has ended (a zombie has)."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_version(mongod):
    said = subprocess.run([mongod, "--version"], capture_output=True, text=True, check=True).stdout
    assert said.startswith("db version v")


def test_fork(mongod, tmp_path):
    port, data = free_port(), tmp_path / "data"
    data.mkdir()
    arguments = ["--dbpath", data, "--port", port, "--bind_ip", "127.0.0.1", "--fork", "--pidfilepath", tmp_path / "pid"]
    arguments += ["--logpath", tmp_path / "mongod.log", "--replSet", "rs7", "--wiredTigerCacheSizeGB", "0.25"]
    arguments += ["--setParameter", "enableTestCommands=1", "--oplogSize", "128"]
    done = subprocess.run([str(a) for a in [mongod, *arguments]], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "forked process:" in done.stdout and "child process started successfully, parent exiting" in done.stdout
    pid = int((tmp_path / "pid").read_text())
    try:
        # The parent ends when the server listens: no waiting here.
        with Wire(port) as wire:
            hello = wire.command({"hello": 1, "$db": "admin"})
            assert hello["ok"] == 1
            config = {"_id": "rs7", "members": [{"_id": 0, "host": f"127.0.0.1:{port}"}]}
            reply = wire.command({"replSetInitiate": config, "$db": "admin"})
            assert reply["ok"] == 1 or reply["code"] == 23, reply
            until("it is primary", lambda: wire.command({"hello": 1, "$db": "admin"}).get("isWritablePrimary"), timeout_s=20)
            hello = wire.command({"hello": 1, "$db": "admin"})
            assert hello["setName"] == "rs7" and hello["isWritablePrimary"] is True
            assert wire.command({"insert": "x", "$db": "test", "documents": [{"_id": 1}], "writeConcern": {"w": "majority"}})["n"] == 1
            assert wire.command({"getCmdLineOpts": 1, "$db": "admin"})["parsed"]["replication"] == {"replSet": "rs7", "oplogSizeMB": 128}
            assert wire.command({"replSetGetStatus": 1, "$db": "admin"})["set"] == "rs7"
            expect = wire.command({"replSetInitiate": config, "$db": "admin"})
            assert expect["code"] == 23 and expect["codeName"] == "AlreadyInitialized"
        assert (tmp_path / "mongod.log").stat().st_size > 0
    finally:
        os.kill(pid, signal.SIGTERM)
    until("it is gone", lambda: gone(pid), timeout_s=20)


def test_fork_reports_failure(mongod, tmp_path, new_server):
    server = new_server()
    (tmp_path / "other").mkdir()
    arguments = [mongod, "--dbpath", tmp_path / "other", "--port", server.port, "--fork", "--logpath", tmp_path / "log"]
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0


def test_fork_needs_a_log(mongod, tmp_path):
    (tmp_path / "data").mkdir()
    done = subprocess.run([mongod, "--dbpath", tmp_path / "data", "--fork"], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "logpath" in done.stdout + done.stderr


def test_without_a_set_it_is_standalone(mongod, tmp_path, new_server):
    (tmp_path / "data").mkdir()
    server = new_server(program=[mongod])
    with server.client() as client:
        hello = client.admin.command("hello")
        assert hello["isWritablePrimary"] is True and "setName" not in hello
        assert client.admin.command("serverStatus")["process"] == "mongod"


def test_options_without_effect_are_taken(mongod, new_server):
    server = new_server("--nounixsocket", "--quiet", "--journal", "--storageEngine", "wiredTiger", "--logappend", program=[mongod])
    with server.client() as client:
        assert client.admin.command("ping")["ok"] == 1


def test_bind_ip(mongod, tmp_path, new_server):
    server = new_server("--bind_ip", "localhost", program=[mongod])
    with server.client() as client:
        assert client.admin.command("ping")["ok"] == 1


def test_test_fixtures_shutdown(mongod, new_server):
    server = new_server("--replSet", "rs0", program=[mongod])
    with server.wire() as wire:
        wire.send_body(bson.encode({"shutdown": 1, "force": True, "$db": "admin"}))
    assert server.process.wait(30) == 0
