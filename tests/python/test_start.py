"""Starting: messages, data directories that are locked, foreign or unwritable, ports in use, options from everywhere."""

import contextlib
import os
import re
import pathlib
import signal
import subprocess

import pytest
from pymongo.write_concern import WriteConcern

from harness import BINARY, Wire, free_port, until


def fails(*arguments, env=None, program=BINARY):
    """Runs to the end, which must come soon and be an error; gives what it said."""
    done = subprocess.run(
        [str(program), *map(str, arguments)], capture_output=True, text=True, timeout=30, env={**os.environ, **(env or {})}
    )
    said = done.stdout + done.stderr
    assert done.returncode not in (0, 101), f"exit {done.returncode}: {said}"
    assert "panicked" not in said, said
    return said


def test_help_names_every_option():
    said = subprocess.run([BINARY, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    for option in "--dbpath --port --bind --cache --durability --advertise --standalone --max-connections --config".split():
        assert option in said, option
    whole = subprocess.run([BINARY, "--help"], capture_output=True, text=True, check=True).stdout
    assert "serve" in whole and "lab" in whole
    assert subprocess.run([BINARY, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def test_says_how_to_connect(new_server):
    server = new_server()
    until("the banner", lambda: "mongodb://" in server.tail(200))
    said = server.tail(200)
    # The name that clients hear: drivers compare the two.
    me = server.client().admin.command("hello")["me"]
    assert me == f"localhost:{server.port}" and f"mongodb://{me}/" in said
    assert str(server.path) in said


def test_data_that_is_not_kept_waits_for_no_disk(new_server):
    server = new_server("--durability", "none")
    until("the banner", lambda: "nothing waits for the disk" in server.tail(200))
    client = server.client()
    assert any("--durability none" in line for line in client.admin.command("getLog", "startupWarnings")["log"])
    client.d.get_collection("c", write_concern=WriteConcern(w="majority", j=True)).insert_one({"_id": 1})
    assert client.d.c.count_documents({}) == 1


def test_a_hangup_does_not_end_it(new_server):
    server = new_server()
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    masks = [int(re.search(rf"^{name}:\s*(\w+)", status, re.M)[1], 16) for name in ("SigIgn", "SigCgt")]
    assert any(mask >> (signal.SIGHUP - 1) & 1 for mask in masks), "the signal would end it"
    server.process.send_signal(signal.SIGHUP)
    assert server.client().admin.command("ping")["ok"] == 1


def test_starts_fast_and_small(new_server):
    server = new_server()
    resident = int(pathlib.Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    assert resident < 100 << 20, f"{resident >> 20} MB when idle"


def test_port_in_use(new_server, tmp_path):
    server = new_server()
    said = fails("serve", "--dbpath", tmp_path / "other", "--port", server.port)
    assert str(server.port) in said and "in use" in said.lower()


def test_data_directory_in_use(new_server):
    server = new_server()
    said = fails("serve", "--dbpath", server.path, "--port", free_port())
    assert str(server.path) in said and "in use" in said
    with server.client() as client:
        client.admin.command("ping")


def test_a_mongodb_directory_is_refused(tmp_path):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "WiredTiger").write_text("WiredTiger\nWiredTiger 11.2.0: (November 1, 2023)\n")
    (foreign / "WiredTiger.wt").write_bytes(b"\0" * 4096)
    (foreign / "mongod.lock").write_text("")
    before = sorted(os.listdir(foreign))
    said = fails("serve", "--dbpath", foreign, "--port", free_port())
    assert "mongodump" in said and "WiredTiger" in said
    assert sorted(os.listdir(foreign)) == before, "it is left as it was"


def test_a_directory_of_something_else_is_refused(tmp_path):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("years of work")
    fails("serve", "--dbpath", foreign, "--port", free_port())
    assert os.listdir(foreign) == ["thesis.tex"]


def test_a_later_format_is_refused(new_server):
    """The stamp of a version that this build does not know ends the start, with the version named."""
    server = new_server()
    server.stop()
    stamp = server.path / "PANDO"
    later = re.sub(rb"[0-9]+", b"9999", stamp.read_bytes())
    assert b"9999" in later
    stamp.write_bytes(later)
    assert "format" in fails("serve", "--dbpath", server.path, "--port", free_port()).lower()


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_an_unwritable_directory(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    assert str(closed) in fails("serve", "--dbpath", closed / "data", "--port", free_port())


def test_a_path_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("x")
    assert "is a file, not a directory" in fails("serve", "--dbpath", tmp_path / "file", "--port", free_port())
    fails("serve", "--dbpath", tmp_path / "file" / "data", "--port", free_port())


@pytest.mark.parametrize(
    "arguments",
    [["--no-such-option"], ["--port", "70000"], ["--port", "x"], ["--cache", "lots"], ["--durability", "maybe"], ["--max-connections", "0"]],
)
def test_bad_options(tmp_path, arguments):
    said = fails("serve", "--dbpath", tmp_path / "data", *arguments)
    assert arguments[0].lstrip("-") in said


def test_a_new_directory_is_made(new_server, tmp_path):
    new_server("--dbpath", tmp_path / "a" / "b" / "data")
    assert (tmp_path / "a" / "b" / "data" / "PANDO").exists()


def test_parameters_that_have_no_effect_are_told(new_server):
    server = new_server("--set-parameter", "noSuchThing=1", "--set-parameter", "cursorTimeoutMillis=soon")
    with server.client() as client:
        said = "\n".join(client.admin.command("getLog", "startupWarnings")["log"])
        assert "noSuchThing" in said and "cursorTimeoutMillis" in said
        assert client.admin.command("getParameter", 1, cursorTimeoutMillis=1)["cursorTimeoutMillis"] == 600_000


def test_beyond_loopback_needs_consent(tmp_path):
    said = fails("serve", "--dbpath", tmp_path / "data", "--bind", "0.0.0.0", "--port", free_port())
    assert "auth" in said.lower() and "--" in said


def test_configuration_file(new_server, tmp_path):
    port = free_port()
    config = tmp_path / "mongod.conf"
    config.write_text(f"# as mongod's\nstorage:\n  dbPath: {tmp_path / 'from-file'}\nnet:\n  port: {port}\n  bindIp: 127.0.0.1\n")
    process = subprocess.Popen([BINARY, "serve", "--config", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:

        def answers():
            with contextlib.suppress(OSError, EOFError), Wire(port) as wire:
                wire.ping()
                return True

        until("it listens where the file says", answers, 20)
        assert (tmp_path / "from-file").is_dir()
    finally:
        process.terminate()
        assert process.wait(30) == 0


def test_configuration_files_that_are_wrong(tmp_path):
    config = tmp_path / "bad.conf"
    config.write_text("net:\n  prot: 1\n")
    assert "prot" in fails("serve", "--config", config)
    config.write_text("net: [unclosed\n")
    assert "bad.conf" in fails("serve", "--config", config)
    assert "missing.conf" in fails("serve", "--config", tmp_path / "missing.conf")


def test_restarts_keep_data(new_server):
    server = new_server()
    for i in range(3):
        with server.client() as client:
            assert client.test.things.count_documents({}) == i
            client.test.things.insert_one({"_id": i})
        assert server.stop() == 0
        server.start()


def test_structured_log(new_server):
    import json

    server = new_server()
    with server.client() as client:
        client.admin.command("ping")
    assert server.stop() == 0
    lines = [line for line in server.tail(10_000).splitlines() if line.startswith("{")]
    assert lines, "no structured line"
    for line in lines:
        assert {"t", "s", "c", "ctx", "msg"} <= set(json.loads(line)), line


def test_memory_does_not_come_in_huge_pages(new_server):
    server = new_server()
    status = pathlib.Path(f"/proc/{server.process.pid}/status")
    known = re.search(r"^THP_enabled:\s*(\d)", status.read_text() if status.exists() else "", re.MULTILINE)
    if not known:
        pytest.skip("this system does not say whether a process has huge pages")
    assert known[1] == "0"


@pytest.mark.parametrize("reopen", [False, True])
def test_log_rotation(new_server, tmp_path, reopen):
    """On SIGUSR1 and by command the old log is moved aside; with reopen another program does that."""
    log = tmp_path / "server.log"
    server = new_server("--log-path", log, *(["--logRotate", "reopen", "--logappend"] if reopen else []))

    def others():
        return [p for p in tmp_path.glob("server.log*") if p != log]

    with server.client() as client:
        if reopen:
            log.rename(tmp_path / "server.log.mine")
        server.process.send_signal(signal.SIGUSR1)
        until("the log is rotated", lambda: log.exists() and others(), timeout_s=60)
        client.admin.command("logRotate")
        client.admin.command("logRotate")
        assert len(others()) == (1 if reopen else 3), "no rotated log takes the place of another"
        client.admin.command("ping")
    assert server.stop() == 0
    assert log.stat().st_size > 0


def test_unknown_log_rotation(tmp_path):
    assert "rename or reopen" in fails("serve", "--dbpath", tmp_path / "data", "--logRotate", "never")
