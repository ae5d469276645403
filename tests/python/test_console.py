"""The console: its views, their rights, and its refusals."""

import contextlib
import json
import re
import socket
import subprocess
import threading

import pytest
from console_client import Console, trusting, with_console
from encrypted import tls_options
from harness import BINARY, free_port, until
from replica_set import ReplicaSet
from sharded_cluster import ShardedCluster

SCRIPT = "<img src=x onerror=alert(1)>"
NAME = '"><script>alert(1)</script>'


@pytest.fixture
def console(new_server):
    """A console without logins, and its session."""
    server, console = with_console(new_server)
    assert console.log_in() == 200
    console.server = server
    return console


@pytest.fixture
def locked(new_server):
    """A server with users: `root`, and `reader` that may read `shop` alone."""
    server, console = with_console(new_server, "--auth")
    with server.client() as client:
        client.admin.command("createUser", "root", pwd="r00t-pässword", roles=["root"])
    with server.client(username="root", password="r00t-pässword") as client:
        client.admin.command("createUser", "reader", pwd="r", roles=[{"role": "read", "db": "shop"}])
        client.shop.things.insert_one({"a": 1})
        client.secret.things.insert_one({"a": 1})
    console.server = server
    return console


def test_the_page_keeps_others_out(console):
    for path in ("/", "/app.js", "/style.css", "/icon.svg", "/nothing"):
        status, headers, body = console.ask("GET", path, headers={"Accept-Encoding": "gzip"})
        assert status == (404 if path == "/nothing" else 200)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert headers["X-Frame-Options"] == "DENY" and headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer" and headers["Connection"] == "close"
        assert "Access-Control-Allow-Origin" not in headers
    status, _, packed = console.ask("GET", "/app.js", headers={"Accept-Encoding": "gzip"})
    status, headers, plain = console.ask("GET", "/app.js", headers={"Accept-Encoding": "identity"})
    assert packed == plain and "Content-Encoding" not in headers
    status, headers, body = console.ask("HEAD", "/")
    assert status == 200 and int(headers["Content-Length"]) > 100 and body == b""


@pytest.mark.parametrize("path", [
    "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2fetc/passwd", "//etc/passwd", "/./index.html", "/index.html/", "/assets/",
    "/api/1/../../index.html", "/api", "/api/", "/api/2/session", "/index.html%00.js", "/" + "a" * 4000,
])
def test_paths_lead_nowhere_else(console, path):
    reply = console.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {console.cookie}\r\n\r\n".encode())
    assert reply.startswith(b"HTTP/1.1 404 "), reply[:200]
    assert b"root:" not in reply


def test_a_user_logs_in_and_out(locked):
    status, answer = locked.get("session")
    assert (status, answer["login"]) == (401, True)
    assert locked.log_in("root", "wrong") == 401
    assert locked.log_in("nobody", "wrong") == 401
    assert locked.log_in() == 401
    assert locked.log_in("root", "r00t-pässword") == 200
    flags = {f.strip() for f in locked.set_cookie.split(";")[1:]}
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= flags
    assert re.fullmatch(rf"pando_console_{locked.port}=[0-9a-f]{{64}}", locked.cookie)
    status, answer = locked.get("session")
    assert status == 200 and answer["user"] == "root@admin"
    assert set(answer["views"]) == {"now", "running", "slow", "data", "members", "log"}
    status, _ = locked.post("logout")
    assert status == 200
    assert locked.get("session")[0] == 401
    locked.cookie = f"pando_console_{locked.port}=" + "0" * 64
    assert locked.get("databases")[0] == 401


def test_a_role_shows_what_it_may(locked):
    assert locked.log_in("reader", "r") == 200
    _, answer = locked.get("session")
    assert set(answer["views"]) == {"running", "data"}
    for path in ("now", "slow", "log", "members"):
        status, answer = locked.get(path)
        assert (status, answer["error"]["code"], answer["error"]["codeName"]) == (403, 13, "Unauthorized"), path
    assert locked.post("slow/plan", {"id": "x"})[0] == 403
    assert [d["name"] for d in locked.get("databases")[1]["databases"]] == ["shop"]
    assert locked.get("collections", db="secret")[0] == 200
    assert locked.get("collections", db="secret")[1]["collections"] == []
    asked = {"db": "shop", "collection": "things"}
    assert len(locked.post("query", asked)[1]["documents"]) == 1
    assert locked.post("query", asked | {"db": "secret"})[0] == 403
    assert locked.post("schema", asked | {"db": "secret"})[0] == 403
    assert locked.post("explain", asked | {"db": "secret"})[0] == 403
    assert locked.post("query", {"db": "admin", "collection": "system.users"})[0] == 403
    assert locked.get("running")[1]["allUsers"] is False


def test_a_user_who_is_gone_sees_nothing(locked):
    assert locked.log_in("reader", "r") == 200
    asked = {"db": "shop", "collection": "things"}
    assert locked.post("query", asked)[0] == 200
    with locked.server.client(username="root", password="r00t-pässword") as client:
        client.admin.command("dropUser", "reader")
    assert locked.post("query", asked)[0] == 403


def test_passwords_are_not_guessed_in_a_flood(locked):
    seen = [locked.log_in("root", f"guess {n}") for n in range(14)]
    assert seen[:10] == [401] * 10 and 429 in seen[10:]
    # Requests with a cookie go on.
    assert locked.get("session")[0] == 401
    assert locked.ask("GET", "/")[0] == 200


@pytest.mark.parametrize("headers, wanted", [
    ({"X-Pando-Console": None}, 403),
    ({"Content-Type": "text/plain"}, 415),
    ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ({"Origin": "https://evil.example"}, 403),
    ({"Origin": "null"}, 403),
    ({"Sec-Fetch-Site": "cross-site"}, 403),
    ({"Sec-Fetch-Site": "same-site"}, 403),
    ({"Host": "evil.example"}, 421),
    ({"Host": "127.0.0.1.evil.example"}, 421),
    ({}, 200),
])
def test_other_pages_ask_in_vain(console, headers, wanted):
    status, answered, _ = console.ask("POST", "/api/1/kill", '{"opid": 2147483647}', headers)
    assert status == wanted
    status, answered, _ = console.ask("POST", "/api/1/login", "{}", headers)
    assert status == wanted and ("Set-Cookie" in answered) == (wanted == 200)
    if "Sec-Fetch-Site" in headers or "Origin" in headers or "Host" in headers:
        assert console.ask("GET", "/api/1/databases", headers=headers)[0] == wanted


def test_what_is_no_request_is_refused(console):
    for data, status in [
        (b"\x16\x03\x01\x02\x00\x01\x00", None),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 9000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 100 + b"\r\n", 431),
        (b"DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"POST /api/1/login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"POST /api/1/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 70000\r\n\r\n", 413),
        (b"POST /api/1/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
    ]:
        reply = console.raw(data)
        assert status is None or reply.startswith(b"HTTP/1.1 %d " % status), (data[:60], reply[:100])
    for body in ("", "[]", "nonsense", '{"a":', "[" * 20000):
        for path in ("login", "query", "kill", "schema", "explain", "slow/plan"):
            status, _, _ = console.ask("POST", "/api/1/" + path, body)
            assert status == 400, (path, body[:20])


def test_held_connections_hold_up_no_client(console):
    held = []
    try:
        for n in range(200):
            s = socket.create_connection(("127.0.0.1", console.port), timeout=10)
            if n % 2:
                s.sendall(b"GET / HTTP/1.1\r\nHost:")
            held.append(s)
        assert console.ask("GET", "/")[0] == 200
        assert console.get("session")[0] == 200
        assert threads_of(console.server) < 180, "threads are bounded"
    finally:
        for s in held:
            s.close()
    with console.server.client() as client:
        assert client.admin.command("ping")["ok"] == 1


def test_unread_replies_hold_up_no_client(console):
    with console.server.client() as client:
        client.shop.things.insert_many({"t": "x" * 900_000} for _ in range(4))
    body = json.dumps({"db": "shop", "collection": "things"})
    ask = f"POST /api/1/query HTTP/1.1\r\nHost: localhost\r\nCookie: {console.cookie}\r\nContent-Type: application/json\r\n"
    ask += f"X-Pando-Console: 1\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    heard = []
    with contextlib.ExitStack() as held:
        for _ in range(24):
            s = held.enter_context(socket.socket())
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.settimeout(20)
            s.connect(("127.0.0.1", console.port))
            s.sendall(ask.encode())
            # The reply begins, and is read no further.
            heard.append(int(s.recv(12).split()[1]))
        assert heard[:5] == [200] * 5 and 503 in heard, "replies that nobody takes are bounded in all"
        assert console.get("session")[0] == 200
        assert console.ask("GET", "/uplot.js")[0] == 200
    until("their room is free again", lambda: console.post("query", json.loads(body))[0] == 200)


def test_a_flood_of_asset_readers_that_never_read(console):
    with contextlib.ExitStack() as held:
        for _ in range(200):
            s = held.enter_context(socket.create_connection(("127.0.0.1", console.port), timeout=10))
            s.sendall(b"GET /uplot.js HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert console.ask("GET", "/")[0] == 200
        assert threads_of(console.server) < 180


def threads_of(server):
    with open(f"/proc/{server.process.pid}/status") as status:
        return int(re.search(r"Threads:\s+(\d+)", status.read())[1])


def test_names_that_are_scripts_stay_text(console):
    with console.server.client() as client:
        client.shop[NAME].insert_one({"_id": SCRIPT, SCRIPT: [{NAME: SCRIPT}], "__proto__": 1})
        client.shop[NAME].create_index(NAME.replace("$", ""))
    answers = [
        console.ask("GET", "/api/1/collections?db=shop"),
        console.ask("POST", "/api/1/query", json.dumps({"db": "shop", "collection": NAME})),
        console.ask("POST", "/api/1/schema", json.dumps({"db": "shop", "collection": NAME})),
        console.ask("GET", "/api/1/" + SCRIPT.replace(" ", "%20")),
    ]
    for status, headers, body in answers:
        assert headers["Content-Type"] == "application/json; charset=utf-8"
        json.loads(body)
    assert [status for status, *_ in answers] == [200, 200, 200, 404]
    [document] = json.loads(answers[1][2])["documents"]
    assert document["_id"] == SCRIPT and document["__proto__"] == 1


def test_the_page_never_makes_markup_of_text(console):
    for name in ("core", "app", "now", "running", "slow", "data", "members", "shards", "log", "tree", "words", "relaxed", "theme", "timeline", "uplot"):
        status, _, body = console.ask("GET", f"/{name}.js")
        assert status == 200
        code = "\n".join(line for line in body.decode().splitlines() if not line.startswith("//"))
        for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc"):
            assert danger not in code, (name, danger)


def test_a_query_reads_and_never_writes(console):
    with console.server.client() as client:
        client.shop.things.insert_many({"_id": n, "a": n % 3} for n in range(300))
        asked = {"db": "shop", "collection": "things"}
        status, answer = console.post("query", asked | {"filter": {"a": 1}, "sort": {"_id": -1}, "limit": 2, "projection": {"a": 0}})
        assert (status, answer["documents"]) == (200, [{"_id": 298}, {"_id": 295}])
        status, answer = console.post("query", asked | {"limit": 100_000})
        assert len(answer["documents"]) == 200
        status, answer = console.post("query", asked | {"pipeline": [{"$group": {"_id": "$a", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]})
        assert answer["documents"] == [{"_id": n, "n": 100} for n in range(3)]
        status, answer = console.post("query", asked | {"filter": {"$nope": 1}})
        assert (status, answer["error"]["codeName"]) == (400, "BadValue")
        for stage in ({"$out": "other"}, {"$merge": {"into": "other"}}, {"$facet": {"x": [{"$out": "other"}]}}):
            assert console.post("query", asked | {"pipeline": [stage]})[0] == 403
            assert console.post("explain", asked | {"pipeline": [stage]})[0] == 403
        assert client.shop.list_collection_names() == ["things"]
        # Cursors that are not read to their end are not left open.
        console.post("query", asked | {"pipeline": [{"$match": {}}], "limit": 1})
        assert client.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"] == 0
        status, answer = console.post("explain", asked | {"filter": {"a": 1}, "limit": 200})
        assert answer["explain"]["executionStats"]["totalDocsExamined"] == 300


def test_a_long_reply_is_refused(console):
    with console.server.client() as client:
        client.shop.things.insert_many({"t": "x" * 1_000_000} for _ in range(6))
    status, answer = console.post("query", {"db": "shop", "collection": "things"})
    assert status == 413 and "ask for less" in answer["error"]["message"]


def test_a_slow_operation_is_shown_with_what_would_serve_it(console):
    with console.server.client() as client:
        client.shop.orders.insert_many({"city": n % 100, "at": n, "total": n} for n in range(5000))
        client.admin.command("profile", 0, slowms=-1)
        for city in (3, 4):
            list(client.shop.orders.find({"city": city, "total": {"$gt": 10}}).sort("at", -1).limit(5))
        client.admin.command("profile", 0, slowms=10_000)
        status, answer = console.get("slow")
        assert (status, answer["slowMillis"]) == (200, 10_000)
        [shape] = [s for s in answer["shapes"] if s["ns"] == "shop.orders" and s["kind"] == "find"]
        assert shape["count"] == 2 and shape["documentsExamined"] == 10_000 and shape["returned"] == 10
        assert shape["examinedPerReturned"] == 1000 and shape["plan"] == "COLLSCAN" and shape["sortsInMemory"]
        assert shape["shape"]["filter"] == {"city": "?", "total": {"$gt": "?"}}
        advice = shape["advice"]
        assert (list(advice["key"].items()), advice["reason"]) == ([("city", 1), ("at", -1), ("total", 1)], "scan")
        status, answer = console.post("slow/plan", {"id": shape["id"]})
        assert status == 200 and answer["explain"]["queryShapeHash"] == shape["queryShapeHash"] == shape["id"]
        assert [i["name"] for i in answer["indexes"]] == ["_id_"]
        # The index that is advised serves it.
        client.shop.orders.create_index(list(advice["key"].items()))
        explained = console.post("explain", {"db": "shop", "collection": "orders", **{k: shape["example"][k] for k in ("filter", "sort", "limit")}})[1]
        assert explained["explain"]["executionStats"]["totalDocsExamined"] == 5


def test_an_operation_is_killed(console):
    with console.server.client() as client:
        client.shop.things.insert_one({})
        failed = []

        def sleep():
            try:
                client.shop.things.find_one({"$where": "sleep(60000) || true"}, comment="planted")
            except Exception as e:  # noqa: BLE001
                failed.append(e)

        thread = threading.Thread(target=sleep)
        thread.start()

        def planted():
            operations = console.get("running")[1]["operations"]
            return [o for o in operations if o.get("command", {}).get("comment") == "planted"]

        [operation] = until("it runs", planted)
        assert operation["planSummary"] == "COLLSCAN"
        assert operation["locks"] == {"Global": "r", "Database": "r", "Collection": "r"}
        assert console.post("kill", {"opid": operation["opid"]}) == (200, {})
        thread.join(30)
        assert failed and failed[0].code == 11601
        assert console.post("kill", {"opid": "x"})[0] == 400


def test_writes_that_are_locked_are_seen(console):
    with console.server.client() as client:
        assert console.get("running")[1]["locksAgainstWrites"] == 0
        client.admin.command("fsync", lock=True)
        thread = threading.Thread(target=client.shop.things.insert_one, args=({"a": 1},))
        thread.start()
        try:
            [waits] = until("it waits", lambda: console.get("now")[1]["waiting"])
            assert waits["locks"]["Global"] == "w" and waits["lockStats"]["Global"]["acquireWaitCount"] == {"w": 1}
            assert console.get("running")[1]["locksAgainstWrites"] == 1
            assert console.get("now")[1]["status"]["pandodb"]["locksAgainstWrites"] == 1
        finally:
            client.admin.command("fsyncUnlock")
        thread.join(30)
        assert console.get("now")[1]["moves"] == []


def test_data_and_its_indexes(console):
    with console.server.client() as client:
        client.shop.things.insert_many({"a": n, "b": "x" if n % 4 else 5} for n in range(100))
        client.shop.things.create_index("a")
        client.shop.things.create_index("b")
        for n in range(60):
            client.shop.create_collection(f"c{n:03}")
        list(client.shop.things.find({"a": 5}))
        names = {d["name"] for d in console.get("databases")[1]["databases"]}
        assert "shop" in names
        _, page = console.get("collections", db="shop")
        assert (page["total"], len(page["collections"]), page["page"]) == (61, 50, 50)
        _, page = console.get("collections", db="shop", **{"from": 50})
        assert len(page["collections"]) == 11
        _, page = console.get("collections", db="shop", filter="THING")
        [things] = page["collections"]
        assert (things["name"], things["count"], things["nindexes"]) == ("things", 100, 3)
        _, one = console.get("collection", db="shop", collection="things")
        by_name = {i["name"]: i for i in one["indexes"]}
        assert by_name["a_1"]["operations"] == 1 and not by_name["a_1"]["unused"]
        assert by_name["b_1"]["unused"] and not by_name["_id_"]["unused"] and by_name["b_1"]["size"] > 0
        _, schema = console.post("schema", {"db": "shop", "collection": "things", "sample": 100})
        field = next(f for f in schema["fields"] if f["path"] == "b")
        assert {t["type"]: t["share"] for t in field["types"]} == {"string": 0.75, "int": 0.25}


def test_figures_of_the_hour(console):
    _, first = until("there are samples", lambda: (a := console.get("now"))[1]["at"] and a)
    assert first["everySeconds"] == 5 and first["series"]["connections"][-1] >= 0
    assert first["series"]["diskFreeBytes"][-1] > 0
    assert first["status"]["connections"]["current"] >= 0 and first["waiting"] == []
    assert all(len(column) == len(first["at"]) for column in first["series"].values())
    _, later = console.get("now", after=first["at"][-1])
    assert first["at"][-1] not in later["at"]


def test_the_log_and_its_warnings(console):
    _, log = console.get("log")
    assert any(line["msg"] == "Waiting for connections" for line in log["lines"])
    assert any("Access control is not enabled" in line["msg"] for line in log["startupWarnings"])
    assert log["certificate"] is None
    assert log["start"] and log["start"][0]["t"] == log["lines"][0]["t"]
    assert log["backup"] == {"known": True}


def test_the_age_of_the_last_backup(console, tmp_path):
    with console.server.client() as client:
        client.shop.things.insert_one({"a": 1})
    uri, archive = f"mongodb://127.0.0.1:{console.server.port}/", tmp_path / "archive"
    subprocess.run([BINARY, "backup", uri, archive], check=True, capture_output=True)
    last = console.get("log")[1]["backup"]
    assert last["known"] and last["to"] == str(archive) and last["backup"] and last["at"]["$date"]
    subprocess.run([BINARY, "backup", uri, tmp_path / "copy", "--in-place"], check=True, capture_output=True)
    assert console.get("log")[1]["backup"]["to"] == str(tmp_path / "copy")


def warned_of(server):
    """Whether it goes on without a console, and has said so."""
    with server.client() as client:
        warnings = client.admin.command("getLog", "startupWarnings")["log"]
    return any("There is no console" in line for line in warnings)


def test_where_it_listens(new_server, tmp_path):
    for n in range(5):
        port = free_port()
        server = new_server(path=tmp_path / f"a{n}", port=port, env={"PANDO_CONSOLE": "on"})
        # Another test may have the port.
        if not warned_of(server):
            break
        server.stop()
    console = Console(port + 1000)
    assert console.log_in() == 200
    # Another one whose port is taken goes on without.
    other = free_port()
    with contextlib.ExitStack() as taken:
        with contextlib.suppress(OSError):
            taken.enter_context(socket.create_server(("127.0.0.1", other + 1000)))
        second = new_server(path=tmp_path / "b", port=other, env={"PANDO_CONSOLE": "on"})
        assert warned_of(second)
    # One that was asked for has to be there.
    with pytest.raises(RuntimeError, match="the console cannot be served"):
        new_server("--console", str(port), path=tmp_path / "c")
    with pytest.raises(RuntimeError, match="will not serve the console on 10.0.0.1"):
        new_server("--console", "10.0.0.1:1", path=tmp_path / "d")
    assert server.stop() == 0
    third = new_server("--no-console", path=tmp_path / "e", port=port, env={"PANDO_CONSOLE": "on"})
    with pytest.raises(ConnectionRefusedError):
        console.ask("GET", "/")
    assert third.stop() == 0


def test_it_is_encrypted_where_it_is_told_to(secure, authority):
    port = free_port()
    secure(*tls_options(authority), "--console", f"https://127.0.0.1:{port}")
    console = Console(port, trusting(authority.file))
    assert console.log_in() == 200
    assert console.cookie.startswith("__Host-pando_console_") and "; Secure" in console.set_cookie
    status, headers, _ = console.ask("GET", "/")
    assert status == 200 and "Strict-Transport-Security" in headers
    assert console.get("log")[1]["certificate"]["$date"]
    assert not Console(port).raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith(b"HTTP")


def test_a_server_stops_while_its_console_is_asked(console):
    with console.server.client() as client:
        client.shop.things.insert_one({})
    ended = []

    def ask():
        try:
            ended.append(console.post("query", {"db": "shop", "collection": "things", "filter": {"$where": "sleep(60000) || true"}})[0])
        except OSError as e:
            ended.append(e)

    thread = threading.Thread(target=ask)
    thread.start()
    until("it runs", lambda: any("$where" in json.dumps(o) for o in console.get("running")[1]["operations"]))
    assert console.post("query", {"db": "shop", "collection": "things"})[0] == 409, "one query at a time"
    assert console.server.stop() == 0
    thread.join(30)
    assert ended


def test_a_set(tmp_path):
    port = free_port()
    with ReplicaSet(tmp_path, size=1, options=("--console", str(port))) as rs:
        rs.initiate()
        rs.primary()
        console = Console(port)
        assert console.log_in() == 200
        _, answer = console.get("members")
        assert [m["stateStr"] for m in answer["status"]["members"]] == ["PRIMARY"]
        assert [m["pandodb"] for m in answer["status"]["members"]] == [console.get("session")[1]["version"]]
        assert answer["config"]["_id"] == "rs" and isinstance(answer["elections"], list)
        _, session = console.get("session")
        assert session["set"] == "rs" and "members" in session["views"]


def test_a_cluster(tmp_path):
    port = free_port()
    with ShardedCluster(tmp_path, router_options=("--console", str(port))) as cluster:
        client = cluster.client()
        client.admin.command("enableSharding", "shop")
        client.admin.command("shardCollection", "shop.things", key={"_id": "hashed"})
        client.shop.things.insert_many({"_id": n, "a": n % 5} for n in range(200))
        console = Console(port)
        assert console.log_in() == 200
        _, session = console.get("session")
        assert session["role"] == "router" and {"shards", "data", "now", "running"} <= set(session["views"])
        _, answer = console.get("shards")
        assert {s["_id"] for s in answer["shards"]} == {"s0", "s1"}
        assert {c["_id"]["shard"] for c in answer["chunks"]} == {"s0", "s1"}
        assert any(c["_id"] == "shop.things" for c in answer["collections"])
        _, answer = console.get("shards/members")
        assert {s["_id"]: [(m["stateStr"], m["pandodb"]) for m in s["members"]] for s in answer["shards"]} == {
            name: [("PRIMARY", session["version"])] for name in ("s0", "s1")
        }
        assert console.get("now")[1]["moves"] == []
        _, schema = console.post("schema", {"db": "shop", "collection": "things"})
        assert {f["path"] for f in schema["fields"]} == {"_id", "a"}
        _, page = console.get("collections", db="shop")
        assert page["collections"][0]["count"] == 200 and page["collections"][0]["sharded"]
        _, found = console.post("query", {"db": "shop", "collection": "things", "filter": {"a": 1}, "limit": 100})
        assert len(found["documents"]) == 40
        assert console.get("running")[0] == 200 and console.get("now")[0] == 200
