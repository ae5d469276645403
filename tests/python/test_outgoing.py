"""Our own clients, the tools and the laboratory, at servers that want a login and TLS."""

import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

from encrypted import tls_client, tls_options
from harness import BINARY, Server, until
from mariadb import INSTALLED, mariadb

LAB = BINARY.with_name("pando-lab")


def run(*words, **more):
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=120, **more)


def lab(*words):
    if not LAB.exists():
        pytest.skip("there is no pando-lab")
    return run(LAB, *words)


def measure(url, out):
    """A little of a workload at a target."""
    return lab("run", "C.S3", "--records", 200, "--operations", 200, "--connections", 3, "--quiet", "--force", "--out", out, "--url", url)


@pytest.fixture
def guarded(secure, authority):
    """A server that wants a login, TLS and a certificate, with its users root and CN=ann, and the options of a URL for it."""
    certificate = authority.issue("ann")
    server = secure(*tls_options(authority, tlsCAFile=authority.file), "--auth")
    with tls_client(server, authority, tlsCertificateKeyFile=str(certificate)) as c:
        c.admin.command("createUser", "root", pwd="geheim", roles=["root"])
    with tls_client(server, authority, tlsCertificateKeyFile=str(certificate), username="root", password="geheim") as c:
        c["$external"].command("createUser", "CN=ann,O=Pando", roles=[{"role": "root", "db": "admin"}])
        c.shop.things.insert_many([{"_id": i, "n": i} for i in range(50)])
    return server, f"tls=true&tlsCAFile={authority.file}&tlsCertificateKeyFile={certificate}"


LOGINS = [("root:geheim@", ""), ("root:geheim@", "&authMechanism=SCRAM-SHA-1"), ("root:geheim@", "&authMechanism=SCRAM-SHA-256"), ("", "&authMechanism=MONGODB-X509")]


@pytest.mark.parametrize("who, how", LOGINS)
def test_tools_of_ours_log_in(guarded, tmp_path, who, how):
    server, tls = guarded
    url = f"mongodb://{who}localhost:{server.port}/?authSource={'$external' if not who else 'admin'}&{tls}{how}"
    done = run(BINARY, "schema", url, "shop.things")
    assert done.returncode == 0 and "_id" in done.stdout, done.stderr
    done = run(BINARY, "backup", url, tmp_path / "copy", "--in-place")
    assert done.returncode == 0, done.stderr
    with Server(tmp_path / "copy") as copy, copy.client() as c:
        assert c.shop.things.count_documents({}) == 50
    done = measure(url, tmp_path / "result.json")
    assert done.returncode == 0, done.stderr
    told = (tmp_path / "result.json").read_text()
    assert "geheim" not in told and '"tls"' in told


def test_tools_of_ours_say_why_they_are_not_let_in(guarded, authority, tmp_path):
    server, tls = guarded
    (tmp_path / "other").mkdir()
    stranger = type(authority)(tmp_path / "other", "stranger")
    certificate = authority.folder / "ann.pem"
    for who, options, why in [
        ("root:falsch@", tls, "Authentication failed"),
        ("", tls, "requires authentication"),
        ("root:geheim@", "", "closed"),
        ("root:geheim@", f"tls=true&tlsCertificateKeyFile={certificate}&tlsCAFile={stranger.file}", "UnknownIssuer"),
        ("root:geheim@", f"tls=true&tlsCAFile={authority.file}", "CertificateRequired"),
        ("root:geheim@", "tls=true&tlsCAFile=/nowhere.pem", "/nowhere.pem"),
    ]:
        done = run(BINARY, "schema", f"mongodb://{who}localhost:{server.port}/?{options}", "shop.things")
        assert done.returncode == 1 or "nowhere" in why and done.returncode == 2, done
        assert why.lower() in done.stderr.lower() or "reset" in done.stderr, (why, done.stderr)
        assert "geheim" not in done.stderr


@pytest.mark.skipif(not shutil.which("psql"), reason="no PostgreSQL here")
def test_the_laboratory_at_postgresql_over_tls(authority, tmp_path):
    certificate = authority.issue("certified")
    authority.issue("server")
    # Root's PostgreSQL runs as another user, which must be able to enter the folder.
    home = pathlib.Path(tempfile.mkdtemp(prefix="pando-postgres-"))
    home.chmod(0o755)
    up = lab("targets", "--dir", home, "up", "postgres", "--memory", "64m")
    if up.returncode:
        pytest.skip(up.stderr)
    try:
        data = next(p.parent for p in home.rglob("postgresql.conf"))
        port = data.joinpath("postmaster.pid").read_text().splitlines()[3]
        owner = data.stat()
        for name in ("server.pem", "authority.pem"):
            shutil.copy(tmp_path / name, data / name)
            data.joinpath(name).chmod(0o600)
            os.chown(data / name, owner.st_uid, owner.st_gid)
        sql = [
            "ALTER SYSTEM SET ssl_cert_file = 'server.pem'", "ALTER SYSTEM SET ssl_key_file = 'server.pem'",
            "ALTER SYSTEM SET ssl_ca_file = 'authority.pem'", "ALTER SYSTEM SET ssl = on",
            "CREATE ROLE scrammed LOGIN SUPERUSER PASSWORD 'geheim'", "CREATE ROLE certified LOGIN SUPERUSER",
        ]
        psql = ["psql", "-h", "127.0.0.1", "-p", port, "-U", "lab", "-d", "postgres", "-v", "ON_ERROR_STOP=1"]
        done = run(*psql, *[w for s in sql for w in ("-c", s)])
        assert done.returncode == 0, done.stderr
        data.joinpath("pg_hba.conf").write_text(
            "hostssl all certified 127.0.0.1/32 cert\nhostssl all scrammed 127.0.0.1/32 scram-sha-256\nhost all lab 127.0.0.1/32 trust\n"
        )
        assert run(*psql, "-c", "SELECT pg_reload_conf()").returncode == 0
        until("the server has read it", lambda: run(*psql, "-tA", "-c", "SHOW ssl").stdout.strip() == "on")
        verify = f"sslmode=verify-full&sslrootcert={authority.file}"
        out = tmp_path / "result.json"
        for who, options in [
            ("scrammed:geheim@", verify),
            ("scrammed:geheim@", "sslmode=require"),
            ("scrammed:geheim@", "sslmode=prefer"),
            ("certified@", f"{verify}&sslcert={certificate}&sslkey={certificate}"),
        ]:
            done = measure(f"postgres://{who}127.0.0.1:{port}/postgres?{options}", out)
            assert done.returncode == 0, (options, done.stderr)
            assert '"tls"' in out.read_text() and "geheim" not in out.read_text()
        (tmp_path / "other").mkdir()
        stranger = type(authority)(tmp_path / "other", "stranger")
        for who, options in [
            ("scrammed:geheim@", ""),
            ("scrammed:geheim@", f"sslmode=verify-ca&sslrootcert={stranger.file}"),
            ("certified@", verify),
        ]:
            assert measure(f"postgres://{who}127.0.0.1:{port}/postgres?{options}", out).returncode == 1, options
    finally:
        lab("targets", "--dir", home, "down")
        shutil.rmtree(home, ignore_errors=True)


@pytest.mark.skipif(not INSTALLED, reason="no MariaDB here")
def test_the_laboratory_at_mariadb_over_tls(authority, tmp_path):
    certificate = authority.issue("certified")
    authority.issue("server")
    own = f"{tmp_path}/server.pem"
    with mariadb(tmp_path, f"--ssl-cert={own}", f"--ssl-key={own}", f"--ssl-ca={authority.file}") as server:
        server.sql(
            """CREATE USER secret@'127.0.0.1' IDENTIFIED BY 'geheim' REQUIRE SSL; GRANT ALL ON *.* TO secret@'127.0.0.1';
               CREATE USER certified@'127.0.0.1' REQUIRE X509; GRANT ALL ON *.* TO certified@'127.0.0.1';"""
        )
        port = server.port
        verify = f"ssl-mode=VERIFY_IDENTITY&ssl-ca={authority.file}"
        out = tmp_path / "result.json"
        for who, options in [
            ("secret:geheim@", verify),
            ("secret:geheim@", "sslMode=REQUIRED"),
            ("secret:geheim@", "ssl-mode=PREFERRED"),
            ("certified@", f"{verify}&ssl-cert={certificate}&ssl-key={certificate}"),
        ]:
            done = measure(f"mysql://{who}127.0.0.1:{port}/lab?{options}", out)
            assert done.returncode == 0, (options, done.stderr)
            assert '"tls"' in out.read_text() and "geheim" not in out.read_text()
        (tmp_path / "other").mkdir()
        stranger = type(authority)(tmp_path / "other", "stranger")
        for who, options in [
            ("secret:geheim@", ""),
            ("secret:geheim@", f"ssl-mode=VERIFY_CA&ssl-ca={stranger.file}"),
            ("certified@", verify),
        ]:
            assert measure(f"mysql://{who}127.0.0.1:{port}/lab?{options}", out).returncode == 1, options
