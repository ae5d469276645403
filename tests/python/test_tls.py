"""Encrypted connections."""

import shutil
import socket
import ssl
import struct
import threading

import bson
import pytest
from pymongo.errors import PyMongoError

from certificates import Authority
from encrypted import Secure, tls_client as client, tls_options as options
from harness import Wire, until


def reaches(server, authority, **more):
    try:
        with client(server, authority, **more) as c:
            return c.admin.command("ping")["ok"] == 1
    except PyMongoError:
        return False


def test_a_driver_works_over_tls(secure, authority):
    server = secure(*options(authority))
    with client(server, authority) as c:
        documents = [{"_id": i, "text": "x" * (i * 100 % 90_000)} for i in range(2000)]
        c.shop.things.insert_many(documents)
        assert list(c.shop.things.find().sort("_id")) == documents
        c.shop.things.insert_one({"_id": "long", "b": b"z" * (15 << 20)})
        assert len(c.shop.things.find_one({"_id": "long"})["b"]) == 15 << 20
        status = c.admin.command("serverStatus")["transportSecurity"]
        assert status["1.3"] >= 1 and status["1.2"] == 0


def test_many_clients_at_once(secure, authority):
    server = secure(*options(authority))
    failures = []

    def work(number):
        try:
            with client(server, authority, serverSelectionTimeoutMS=20_000) as c:
                for i in range(50):
                    c.shop.many.insert_one({"_id": f"{number}.{i}", "pad": "p" * i * 200})
                assert c.shop.many.count_documents({"_id": {"$regex": f"^{number}\\."}}) == 50
        except Exception as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failures


def test_a_slow_reader_gets_all_of_a_long_reply(secure, authority):
    server = secure(*options(authority))
    context = ssl.create_default_context(cafile=authority.file)
    raw = socket.create_connection(("localhost", server.port))
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
    with client(server, authority) as c, context.wrap_socket(raw, server_hostname="localhost") as s:
        c.shop.things.insert_one({"_id": 1, "b": b"z" * (14 << 20)})
        body = bson.encode({"find": "things", "$db": "shop"})
        s.sendall(struct.pack("<iiiiiB", 21 + len(body), 1, 0, 2013, 0, 0) + body)
        in_flight = lambda: c.admin.command("serverStatus")["pandodb"]["inFlight"]["bytes"]  # noqa: E731
        until("the rest of the reply waits for its reader", lambda: in_flight() > 1 << 20)
        got = b""
        while len(got) < 16 or len(got) < struct.unpack("<i", got[:4])[0]:
            part = s.recv(1 << 20)
            assert part, f"ended after {len(got)} bytes"
            got += part
        reply = bson.decode(got[21:])
        assert len(reply["cursor"]["firstBatch"][0]["b"]) == 14 << 20


def test_plain_text_only_where_it_is_allowed(secure, authority):
    server = secure(*options(authority))
    with pytest.raises((OSError, EOFError)), Wire(server.port, timeout_s=5) as wire:
        wire.command({"ping": 1, "$db": "admin"})
    server.stop()
    server = secure(*options(authority, mode="allowTLS"))
    with Wire(server.port) as wire:
        assert wire.command({"ping": 1, "$db": "admin"})["ok"] == 1
    assert reaches(server, authority)


def test_certificates_of_clients(secure, authority, tmp_path):
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other", "stranger")
    own, expired, revoked = authority.issue("client"), authority.issue("expired", days=-1), authority.issue("revoked-client")
    server = secure(*options(authority, tlsCAFile=authority.file, tlsCRLFile=authority.revoke(revoked)))
    assert reaches(server, authority, tlsCertificateKeyFile=str(own))
    assert not reaches(server, authority)
    for wrong in (expired, revoked, stranger.issue("client")):
        assert not reaches(server, authority, tlsCertificateKeyFile=str(wrong)), wrong
    server.stop()
    server = secure(*options(authority, tlsCAFile=authority.file, tlsAllowConnectionsWithoutCertificates=True))
    assert reaches(server, authority) and reaches(server, authority, tlsCertificateKeyFile=str(own))
    assert not reaches(server, authority, tlsCertificateKeyFile=str(expired))


@pytest.mark.parametrize("disabled, version", [("TLS1_3", "1.2"), ("TLS1_2", "1.3"), ("TLS1_0,TLS1_1", "1.3")])
def test_versions(secure, authority, disabled, version):
    server = secure(*options(authority, tlsDisabledProtocols=disabled))
    with client(server, authority) as c:
        assert c.admin.command("serverStatus")["transportSecurity"][version] >= 1


def test_certificates_change_without_a_stop(secure, authority, tmp_path):
    server = secure(*options(authority))

    def serial():
        context = ssl.create_default_context(cafile=authority.file)
        with socket.create_connection(("localhost", server.port)) as raw, context.wrap_socket(raw, server_hostname="localhost") as s:
            return s.getpeercert()["serialNumber"]

    before = serial()
    with client(server, authority) as c:
        c.admin.command("ping")
        authority.issue("server")
        assert c.admin.command("rotateCertificates")["ok"] == 1
        assert serial() != before
        after = serial()
        (tmp_path / "server.pem").write_text("nonsense")
        with pytest.raises(PyMongoError) as caught:
            c.admin.command("rotateCertificates")
        assert caught.value.code == 140 and "server.pem" in str(caught.value)
        assert serial() == after and c.admin.command("ping")["ok"] == 1


def test_garbage_and_half_a_handshake_harm_no_client(secure, authority):
    server = secure(*options(authority))
    held = []
    for bytes_ in [b"\x16", b"\x16\x03", b"\x16\x03\x01\x02\x00\x01", b"\x16\x03\x01\xff\xff" + b"x" * 200, b"GET / HTTP/1.1\r\n\r\n"] * 100:
        s = socket.create_connection(("127.0.0.1", server.port))
        s.sendall(bytes_)
        held.append(s)
    assert reaches(server, authority)
    [s.close() for s in held]
    assert reaches(server, authority) and server.running()


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda path: path.chmod(0o644), "permissions are too open"),
        (lambda path: path.write_text("nonsense"), "no certificate"),
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.write_text(path.read_text().split("-----BEGIN PRIVATE")[0]), "no private key"),
    ],
)
def test_a_bad_certificate_file_is_no_start(tmp_path, authority, change, why):
    given = options(authority)
    change(tmp_path / "server.pem")
    server = Secure(tmp_path / "data", *given)
    server.launch()
    assert server.process.wait(20) == 2
    assert why in server.tail() and "server.pem" in server.tail()


def test_a_key_of_another_certificate_is_no_start(tmp_path, authority):
    given = options(authority)
    shutil.copy(authority.issue("client"), tmp_path / "mixed.pem")
    certificate = (tmp_path / "server.pem").read_text().split("-----BEGIN PRIVATE")[0]
    key = (tmp_path / "mixed.pem").read_text().split("-----END CERTIFICATE-----\n")[1]
    (tmp_path / "server.pem").write_text(certificate + key)
    server = Secure(tmp_path / "data", *given)
    server.launch()
    assert server.process.wait(20) == 2 and "server.pem" in server.tail()


def test_a_login_over_tls_on_a_name_of_its_own(secure, authority):
    server = secure(*options(authority), "--auth", "--bind_ip_all")
    with client(server, authority) as c:
        c.admin.command("createUser", "root", pwd="p", roles=["root"])
    with client(server, authority, username="root", password="p") as c:
        c.shop.things.insert_one({"_id": 1})
        assert c.shop.things.find_one() == {"_id": 1}


def x509_client(server, authority, certificate, **more):
    return client(server, authority, tlsCertificateKeyFile=str(certificate), authMechanism="MONGODB-X509", **more)


def test_a_certificate_is_a_login(secure, authority):
    certificate = authority.issue("ann")
    server = secure(*options(authority, tlsCAFile=authority.file), "--auth")
    with client(server, authority, tlsCertificateKeyFile=str(certificate)) as c:
        c.admin.command("createUser", "root", pwd="p", roles=["root"])
    root = {"username": "root", "password": "p", "tlsCertificateKeyFile": str(certificate)}
    with client(server, authority, **root) as c:
        c["$external"].command("createUser", "CN=ann,O=Pando", roles=[{"role": "readWrite", "db": "shop"}])
    for more in ({}, {"username": "CN=ann,O=Pando"}):
        with x509_client(server, authority, certificate, **more) as c:
            c.shop.things.insert_one({})
            users = c.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]
            assert users == [{"user": "CN=ann,O=Pando", "db": "$external"}]
            with pytest.raises(PyMongoError):
                c.other.things.insert_one({})
    for wrong, more in ((authority.issue("bob"), {}), (certificate, {"username": "CN=bob,O=Pando"})):
        with x509_client(server, authority, wrong, **more) as c, pytest.raises(PyMongoError) as caught:
            c.shop.things.find_one()
        assert caught.value.code == 18


def test_the_server_tells_of_its_certificate(secure, authority):
    soon = authority.issue("server", days=20)
    server = secure("--tlsMode", "requireTLS", "--tlsCertificateKeyFile", soon)
    with client(server, authority) as c:
        told = c.admin.command("serverStatus")["security"]
        assert told["SSLServerSubjectName"] == "CN=server,O=Pando" and told["SSLServerHasCertificateAuthority"] is False
        left = told["SSLServerCertificateExpirationDate"] - __import__("datetime").datetime.now()
        assert 18 <= left.days <= 21
        assert any("expires soon" in line for line in c.admin.command("getLog", "startupWarnings")["log"])
        authority.issue("server")
        c.admin.command("rotateCertificates")
        assert c.admin.command("serverStatus")["security"]["SSLServerCertificateExpirationDate"] > told["SSLServerCertificateExpirationDate"]


def test_a_client_of_tls_is_closed_by_a_server_without(server, authority):
    context = ssl.create_default_context(cafile=authority.file)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw, pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(raw, server_hostname="localhost")


def test_a_handshake_without_end_is_closed(secure, authority):
    server = secure(*options(authority))
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as s:
        # A ClientHello of 60,000 bytes, in records that never end it.
        s.sendall(b"\x16\x03\x01\x3f\xff" + b"\x01\x00\xea\x60" + b"\x03\x03" + b"x" * (0x3FFF - 6))
        with pytest.raises(ConnectionError):
            for _ in range(100):
                s.sendall(b"\x16\x03\x01\x3f\xff" + b"x" * 0x3FFF)
                if not s.recv(1000):
                    raise ConnectionError
    assert reaches(server, authority)


@pytest.mark.parametrize("text, why", [("nonsense", "no revocation list"), (None, "needs --tlsCAFile")])
def test_a_revocation_list_that_checks_nothing_is_no_start(tmp_path, authority, text, why):
    crl = tmp_path / "crl.pem"
    crl.write_text(text or "")
    more = {"tlsCAFile": authority.file} if text else {}
    server = Secure(tmp_path / "data", *options(authority, tlsCRLFile=crl, **more))
    server.launch()
    assert server.process.wait(20) == 2 and why in server.tail()


@pytest.fixture
def with_root(secure, authority):
    """A server with certificates of clients, and its user root."""

    def start(*more, **tls):
        server = secure(*options(authority, tlsCAFile=authority.file, tlsAllowConnectionsWithoutCertificates=True, **tls), *more)
        with client(server, authority) as c:
            c.admin.command("createUser", "root", pwd="p", roles=["root"])
        return server

    return start


def users_of(c):
    return c.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]


@pytest.mark.parametrize("user, written", [("Jürgen Öß", "CN=J\\C3\\BCrgen \\C3\\96\\C3\\9F"), (' a,b+"c#d ', 'CN=\\ a\\,b\\+\\"c#d\\ ')])
def test_names_are_written_as_mongodb_writes_them(with_root, authority, user, written):
    certificate = authority.issue(user, file="special")
    server = with_root("--auth")
    with client(server, authority, username="root", password="p") as c:
        c["$external"].command("createUser", f"{written},O=Pando", roles=[{"role": "read", "db": "shop"}])
    with x509_client(server, authority, certificate) as c:
        assert users_of(c) == [{"user": f"{written},O=Pando", "db": "$external"}]


def test_roles_in_a_certificate(with_root, authority):
    server = with_root("--auth")
    certificate = authority.issue("carl", roles=[("readWrite", "shop"), ("clerk", "shop")])
    with client(server, authority, username="root", password="p") as c, x509_client(server, authority, certificate) as carl:
        c.shop.command("createRole", "clerk", privileges=[{"resource": {"db": "shop", "collection": "papers"}, "actions": ["find"]}], roles=[])
        carl.shop.things.insert_one({})
        with pytest.raises(PyMongoError):
            carl.other.things.find_one()
        assert users_of(carl) == [{"user": "CN=carl,O=Pando", "db": "$external"}]
        # A change of a role counts for this user too.
        c.shop.command("updateRole", "clerk", roles=["read"], privileges=[])
        carl.shop.things.find_one()


@pytest.mark.parametrize("mode, key, certificate", [("keyFile", True, False), ("sendKeyFile", True, True), ("sendX509", True, True), ("x509", False, True)])
def test_how_members_may_log_in(with_root, authority, tmp_path, mode, key, certificate):
    (tmp_path / "key").write_text("abcdefgh")
    (tmp_path / "key").chmod(0o600)
    server = with_root("--keyFile", tmp_path / "key", "--clusterAuthMode", mode)
    member = authority.issue("member", unit="Servers")
    by_certificate = {"authMechanism": "MONGODB-X509", "tlsCertificateKeyFile": str(member)}
    by_key = {"username": "__system", "password": "abcdefgh", "authSource": "local"}
    for how, taken in ((by_key, key), (by_certificate, certificate)):
        with client(server, authority, **how) as c:
            if taken:
                assert users_of(c) == [{"user": "__system", "db": "local"}]
                c.shop.things.insert_one({})
            else:
                with pytest.raises(PyMongoError) as caught:
                    users_of(c)
                assert caught.value.code == 18
    # A user with the name of a member's certificate does not become a member.
    with client(server, authority, username="root", password="p") as c:
        c["$external"].command("createUser", "CN=member,OU=Servers,O=Pando", roles=[])
    with client(server, authority, **by_certificate) as c:
        if certificate:
            assert users_of(c) == [{"user": "__system", "db": "local"}]
        else:
            with pytest.raises(PyMongoError):
                users_of(c)


@pytest.mark.parametrize(
    "options_, why",
    [
        (["--clusterAuthMode", "x509"], "needs --tlsMode"),
        (["--clusterAuthMode", "keyFile"], "there is no --keyFile"),
        (["--clusterAuthMode", "never"], "keyFile, sendKeyFile, sendX509 or x509"),
    ],
)
def test_a_cluster_without_what_it_needs_is_no_start(tmp_path, options_, why):
    server = Secure(tmp_path / "data", *options_)
    server.launch()
    assert server.process.wait(20) == 2 and why in server.tail()


def test_an_encrypted_key(secure, authority, tmp_path):
    authority.issue("server", password="geheim")
    given = ["--tlsMode", "requireTLS", "--tlsCertificateKeyFile", tmp_path / "server.pem"]
    for password, why in ((None, "no password was given"), ("falsch", "does not open")):
        more = ["--tlsCertificateKeyFilePassword", password] if password else []
        server = Secure(tmp_path / "data", *given, *more)
        server.launch()
        assert server.process.wait(20) == 2 and why in server.tail() and "server.pem" in server.tail()
    server = secure(*given, "--tlsCertificateKeyFilePassword", "geheim")
    with client(server, authority) as c:
        told = c.admin.command("getCmdLineOpts")
        assert "geheim" not in str(told) and told["parsed"]["net"]["tls"]["certificateKeyFilePassword"] == "<password>"
    assert "geheim" not in server.log.read_text()
