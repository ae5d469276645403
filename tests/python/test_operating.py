"""What an operator meets on a bad day: files, options, words."""

import os
import socket
import stat
import subprocess

import pytest
from harness import Server, run_pando, until


def test_data_log_and_backup_are_for_their_owner_only(tmp_path):
    before = os.umask(0o022)
    try:
        log = tmp_path / "server.log"
        with Server(tmp_path / "data", "--log-path", log, "--pid-file", tmp_path / "pid") as server, server.client() as client:
            client.t.c.insert_many([{"_id": n} for n in range(1000)])
            assert run_pando("backup", f"mongodb://{server.address}/", tmp_path / "backup", "--in-place").returncode == 0
            made = [tmp_path / "data", log, tmp_path / "backup"]
            made += [*(tmp_path / "data").rglob("*"), *(tmp_path / "backup").rglob("*")]
            open_to_others = [str(p) for p in made if p.stat().st_mode & 0o077]
            assert open_to_others == []
            # Programs that watch the process may read its number, as with mongod.
            assert stat.S_IMODE((tmp_path / "pid").stat().st_mode) == 0o644
    finally:
        os.umask(before)


def test_who_speaks_http_hears_what_this_is(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as browser:
        browser.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8\r\n\r\n")
        said = b""
        while part := browser.recv(4096):
            said += part
    head, body = said.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.0 200 OK") and b"Content-Length: 85" in head
    assert body == b"It looks like you are trying to access MongoDB over HTTP on the native driver port.\r\n" and len(body) == 85


def test_what_a_later_release_wrote_is_not_called_damaged(tmp_path):
    server = Server(tmp_path / "data")
    server.start()
    server.stop()
    (tmp_path / "data" / "PANDO").write_text("pando data format 99\n")
    checked = run_pando("check", tmp_path / "data")
    assert checked.returncode == 100 and "a later release has written" in checked.stderr, checked.stdout + checked.stderr
    assert "DAMAGED" not in checked.stdout and "salvage" not in checked.stderr
    with pytest.raises(RuntimeError, match="format 99"):
        server.start()


def test_repair_is_refused_with_the_tools_that_there_are(tmp_path):
    refused = run_pando("mongod", "--repair", "--dbpath", tmp_path / "data")
    assert refused.returncode == 2 and "pando check" in refused.stderr and "pando salvage" in refused.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("option", [("--profile", "2"), ("--config",)])
def test_the_profiler_is_on_from_the_start_where_that_is_asked_for(tmp_path, option):
    if option == ("--config",):
        (tmp_path / "mongod.conf").write_text("operationProfiling:\n  mode: all\n")
        option = ("--config", tmp_path / "mongod.conf")
    with Server(tmp_path / "data", *option) as server, server.client() as client:
        assert client.t.command("profile", -1)["was"] == 2
        client.t.c.insert_one({})
        assert client.t["system.profile"].find_one({"op": "insert"})
        client.t.command("profile", 0)
        assert client.t.command("profile", -1)["was"] == 0 and client.u.command("profile", -1)["was"] == 2


def test_index_builds_are_in_the_log(server):
    with server.client() as client:
        client.t.c.insert_many([{"n": n} for n in range(1000)])
        client.t.c.create_index("n")
    log = until("it is written", lambda: (text := server.log.read_text()) and "done building" in text and text)
    assert "Index build: starting" in log and '"index":"n_1"' in log


@pytest.mark.parametrize(
    ("words", "usage"),
    [(["serve"], "pando serve"), (["route"], "pando route"), (["mongod"], "mongod"), (["mongos"], "mongos")],
)
def test_help_is_that_of_the_program_that_was_called(words, usage):
    said = run_pando(*words, "--help").stdout
    assert f"Usage: {usage} " in said
    assert ("--configdb SET" in said) == (usage in ("pando route", "mongos"))


def test_the_command_that_is_printed_for_the_first_user_is_one(tmp_path, authority):
    options = ["--tlsMode", "requireTLS", "--tlsCertificateKeyFile", authority.issue("server"), "--tlsCAFile", authority.file, "--auth"]
    options += ["--tlsAllowConnectionsWithoutCertificates"]
    server = Server(tmp_path / "data", *options)
    server.launch()
    try:
        said = until("it is ready", lambda: (text := server.tail()) and "Try:" in text and text)
    finally:
        server.kill()
    [command] = [line.strip() for line in said.splitlines() if "createUser" in line and "npx" in line]
    words = subprocess.run(["sh", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True).stdout.splitlines()
    uri = words[2]
    assert uri.startswith("mongodb://") and "/admin?" in uri and "tls=true" in uri and f"tlsCAFile={authority.file}" in uri, words
    assert words[3] == "--eval" and words[4].startswith("db.createUser(")


def test_an_expired_certificate_is_said_to_have_expired(tmp_path, authority):
    options = ["--tlsMode", "allowTLS", "--tlsCertificateKeyFile", authority.issue("server", days=-1)]
    with Server(tmp_path / "data", *options) as server, server.client() as client:
        said = client.admin.command("getLog", "startupWarnings")["log"]
        assert any("certificate has expired" in line for line in said) and not any("expires soon" in line for line in said), said


def test_a_password_that_was_forgotten_is_set_anew_with_the_key_of_the_members(tmp_path):
    key = tmp_path / "key"
    key.write_text("c2VjcmV0IG9mIHRoZSBtZW1iZXJz")
    key.chmod(0o600)
    with Server(tmp_path / "data", "--replSet", "rs0", "--keyFile", key) as server:
        with server.client() as client:
            client.admin.command("replSetInitiate", {"_id": "rs0", "members": [{"_id": 0, "host": server.address}]})
            until("it takes writes", lambda: client.admin.command("hello")["isWritablePrimary"])
            client.admin.command("createUser", "admin", pwd="forgotten", roles=["root"])
        with server.client(username="__system", password=key.read_text(), authSource="local") as member:
            member.admin.command("updateUser", "admin", pwd="new")
        with server.client(username="admin", password="new") as client:
            client.t.c.insert_one({})


def test_a_password_that_was_forgotten_is_set_anew_without_logins(tmp_path):
    server = Server(tmp_path / "data", "--auth")
    with server, server.client() as client:
        client.admin.command("createUser", "admin", pwd="forgotten", roles=["root"])
    with Server(tmp_path / "data") as server, server.client() as client:
        client.admin.command("updateUser", "admin", pwd="new")
    with Server(tmp_path / "data", "--auth") as server, server.client(username="admin", password="new") as client:
        client.t.c.insert_one({})
