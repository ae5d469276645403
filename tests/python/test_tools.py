"""MongoDB's database tools against the server: what goes out comes in again."""

import json
import os
import pathlib
import shutil
import subprocess
import threading

import bson
import pytest
from bson import Decimal128, Int64, Timestamp

from encrypted import tls_client, tls_options
from harness import until

TOOLS = pathlib.Path(os.environ.get("PANDO_TOOLS", ".tools/bin"))


def tool(name):
    path = TOOLS / name if (TOOLS / name).exists() else shutil.which(name)
    if not path:
        pytest.skip(f"{name} is not here")
    return str(path)


def run(name, server, *arguments, **options):
    done = subprocess.run(
        [tool(name), "--host", "127.0.0.1", "--port", str(server.port), *map(str, arguments)],
        capture_output=True,
        timeout=120,
        **options,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done


@pytest.fixture
def shop(client, db):
    db.orders.insert_many(
        [{"_id": i, "n": Int64(i), "d": Decimal128("1.50"), "tags": ["a", str(i % 7)], "at": Timestamp(i + 1, 1)} for i in range(3000)]
    )
    db.orders.create_index([("n", -1), ("tags", 1)], name="by_n")
    db.orders.create_index("d", partialFilterExpression={"n": {"$gt": 5}})
    db.people.insert_many([{"_id": f"p{i}", "name": f"Person {i}", "age": i % 90} for i in range(100)])
    db.people.create_index("name", unique=True)
    db.create_collection("empty")
    return db


def contents(db):
    return {
        name: ({bson.encode(d) for d in db[name].find()}, {n: {k: v for k, v in i.items() if k != "ns"} for n, i in db[name].index_information().items()})
        for name in db.list_collection_names()
    }


@pytest.mark.parametrize("form", ["directory", "gzip", "archive"])
def test_dump_and_restore(server, client, shop, tmp_path, form):
    before = contents(shop)
    where = {"directory": [f"{tmp_path}/dump"], "gzip": [f"{tmp_path}/dump"], "archive": []}[form]
    dump = {"directory": [f"--out={tmp_path}/dump"], "gzip": ["--gzip", f"--out={tmp_path}/dump"], "archive": [f"--archive={tmp_path}/dump.archive"]}[form]
    restore = {"directory": [], "gzip": ["--gzip"], "archive": [f"--archive={tmp_path}/dump.archive"]}[form]
    run("mongodump", server, f"--db={shop.name}", *dump)
    client.drop_database(shop.name)
    run("mongorestore", server, "--drop", *restore, *where)
    assert contents(shop) == before


def test_dump_and_restore_of_other_kinds(server, client, db, tmp_path):
    db.create_collection("capped", capped=True, size=4096, max=10)
    db.create_collection("clustered", clusteredIndex={"key": {"_id": 1}, "unique": True}, expireAfterSeconds=3600)
    for i in [5, 1, 9, 3]:
        db.capped.insert_one({"_id": i})
        db.clustered.insert_one({"_id": i})
    db.clustered.create_index("at", expireAfterSeconds=60)
    kept = {n: (list(db[n].find()), db[n].options(), db[n].index_information()) for n in ["capped", "clustered"]}
    run("mongodump", server, f"--db={db.name}", f"--archive={tmp_path}/d")
    client.drop_database(db.name)
    run("mongorestore", server, "--maintainInsertionOrder", f"--archive={tmp_path}/d")
    assert {n: (list(db[n].find()), db[n].options(), db[n].index_information()) for n in kept} == kept
    assert [d["_id"] for d in kept["capped"][0]] == [5, 1, 9, 3]


def test_restore_of_renamed(server, client, shop, tmp_path):
    run("mongodump", server, f"--db={shop.name}", f"--archive={tmp_path}/d")
    run("mongorestore", server, f"--archive={tmp_path}/d", f"--nsFrom={shop.name}.*", f"--nsTo={shop.name}_copy.*")
    assert contents(client[shop.name + "_copy"]) == contents(shop)
    client.drop_database(shop.name + "_copy")


def test_dump_with_a_query(server, client, shop, tmp_path):
    run("mongodump", server, f"--db={shop.name}", "--collection=orders", '--query={"_id": {"$lt": 10}}', f"--out={tmp_path}/dump")
    raw = (tmp_path / "dump" / shop.name / "orders.bson").read_bytes()
    assert [d["_id"] for d in bson.decode_all(raw)] == list(range(10))


def test_export_and_import(server, client, shop, tmp_path):
    run("mongoexport", server, f"--db={shop.name}", "--collection=orders", "--jsonFormat=canonical", f"--out={tmp_path}/o.json")
    assert len((tmp_path / "o.json").read_text().splitlines()) == 3000
    run("mongoimport", server, f"--db={shop.name}", "--collection=again", f"--file={tmp_path}/o.json")
    assert {bson.encode(d) for d in shop.again.find()} == {bson.encode(d) for d in shop.orders.find()}
    run("mongoexport", server, f"--db={shop.name}", "--collection=people", "--type=csv", "--fields=name,age", "--sort={_id:1}", f"--out={tmp_path}/p.csv")
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "name,age" and lines[1] == "Person 0,0"
    run("mongoimport", server, f"--db={shop.name}", "--collection=csv", "--type=csv", "--headerline", f"--file={tmp_path}/p.csv")
    assert shop.csv.count_documents({"age": {"$type": "int"}}) == 100
    upsert = tmp_path / "u.json"
    upsert.write_text('{"_id":"p1","name":"Changed"}\n{"_id":"new","name":"New"}\n')
    run("mongoimport", server, f"--db={shop.name}", "--collection=people", "--mode=upsert", f"--file={upsert}")
    assert shop.people.find_one({"_id": "p1"})["name"] == "Changed" and shop.people.count_documents({}) == 101


def test_stat(server, shop):
    done = run("mongostat", server, "--json", "--rowcount=2", "1")
    lines = [json.loads(line) for line in done.stdout.decode().splitlines() if line.startswith("{")]
    assert lines
    (row,) = lines[-1].values()
    for column in ("insert", "query", "update", "delete", "getmore", "command", "dirty", "used", "qrw", "arw", "net_in", "net_out", "conn", "res", "vsize"):
        assert column in row, f"{column} of {row}"


def test_top(server, shop):
    done = run("mongotop", server, "--json", "--rowcount=1", "1")
    assert "totals" in json.loads(done.stdout.decode().splitlines()[-1])


def login(server, user, pwd, db):
    return [f"--uri=mongodb://{user}:{pwd}@127.0.0.1:{server.port}/?authSource={db}&directConnection=true"]


def run_as(name, server, who, *arguments):
    done = subprocess.run([tool(name), *login(server, *who), *map(str, arguments)], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return done


@pytest.mark.parametrize("whole", [True, False])
def test_users_come_along_with_their_credentials(new_server, tmp_path, whole):
    """Dumped and restored as a whole, and with one database."""
    root = ("root", "p", "admin")
    servers = []
    for place in ("one", "two"):
        server = new_server("--auth", path=tmp_path / place)
        server.client().admin.command("createUser", "root", pwd="p", roles=["root"])
        servers.append(server)
    one, two = servers
    with one.client(username="root", password="p") as client:
        client.shop.things.insert_one({"_id": 1})
        client.shop.command("createRole", "reader", privileges=[], roles=["read"])
        client.shop.command("createUser", "ann", pwd="secret", roles=["reader"])
    out = [] if whole else ["--db=shop", "--dumpDbUsersAndRoles"]
    run_as("mongodump", one, root, f"--out={tmp_path}/dump", *out)
    back = [f"{tmp_path}/dump"] if whole else ["--db=shop", "--restoreDbUsersAndRoles", f"{tmp_path}/dump/shop"]
    run_as("mongorestore", two, root, *back)
    with two.client(username="ann", password="secret", authSource="shop") as ann:
        assert ann.shop.things.find_one() == {"_id": 1}
        with pytest.raises(Exception, match="not authorized"):
            ann.shop.things.insert_one({})
    with two.client(username="root", password="p") as client:
        assert client.admin.list_collection_names(filter={"name": {"$regex": "^temp"}}) == []


@pytest.mark.parametrize("how", ["SCRAM-SHA-256", "SCRAM-SHA-1", "MONGODB-X509"])
def test_tools_log_in_over_tls(secure, authority, tmp_path, how):
    certificate = authority.issue("ann")
    server = secure(*tls_options(authority, tlsCAFile=authority.file), "--auth")
    with tls_client(server, authority, tlsCertificateKeyFile=str(certificate)) as c:
        c.admin.command("createUser", "root", pwd="p", roles=["root"])
    root = {"username": "root", "password": "p", "tlsCertificateKeyFile": str(certificate)}
    with tls_client(server, authority, **root) as c:
        c["$external"].command("createUser", "CN=ann,O=Pando", roles=[{"role": "root", "db": "admin"}])
        c.shop.things.insert_many([{"_id": i} for i in range(100)])
        who = [] if how == "MONGODB-X509" else ["--username=root", "--password=p"]
        source = "$external" if how == "MONGODB-X509" else "admin"
        login = [*who, f"--authenticationDatabase={source}", f"--authenticationMechanism={how}"]
        tls = ["--ssl", f"--sslCAFile={authority.file}", f"--sslPEMKeyFile={certificate}"]

        def go(name, *arguments):
            all = [tool(name), "--host=localhost", f"--port={server.port}", *tls, *login, *map(str, arguments)]
            done = subprocess.run(all, capture_output=True, timeout=120)
            assert done.returncode == 0, done.stderr.decode()
            return done

        go("mongodump", "--db=shop", f"--out={tmp_path}/dump")
        c.drop_database("shop")
        go("mongorestore", f"{tmp_path}/dump")
        assert c.shop.things.count_documents({}) == 100
        go("mongoexport", "--db=shop", "--collection=things", f"--out={tmp_path}/t.json")
        go("mongoimport", "--db=shop", "--collection=again", f"--file={tmp_path}/t.json")
        assert c.shop.again.count_documents({}) == 100
        assert b"totals" in go("mongotop", "--json", "--rowcount=1", "1").stdout
        assert go("mongostat", "--json", "--rowcount=1", "1").stdout
        (tmp_path / "file").write_bytes(b"x" * 1000)
        go("mongofiles", "--db=files", f"--local={tmp_path}/file", "put", "name")
        assert c.files["fs.files"].find_one()["length"] == 1000


def shop_load(server, name, stop, kind):
    """Writes of every kind, until it is told to end."""
    with server.client() as own:
        db, i = own[name], 0
        while not stop.is_set():
            i += 1
            db.orders.insert_one({"_id": f"{kind}-{i}", "n": 0, "l": []})
            db.orders.insert_many([{"_id": f"{kind}-{i}-{j}"} for j in range(3)])
            db.orders.update_one({"_id": (7 * i) % 500}, {"$inc": {"n": 1}, "$push": {"l": i}})
            db.orders.update_many({"_id": {"$in": [i % 500, (i + 1) % 500]}}, {"$set": {f"f{i % 5}": i}})
            db.orders.delete_one({"_id": f"{kind}-{i - 5}"})

            def both(session, i=i):
                db.orders.update_one({"_id": i % 500}, {"$inc": {"paid": 1}}, session=session)
                db.payments.insert_one({"kind": kind, "i": i}, session=session)

            with own.start_session() as session:
                session.with_transaction(both)


def test_dump_and_replay_the_oplog_under_writes(new_server, tmp_path):
    """What mongodump --oplog wrote, and the source's oplog from there on, make the source's state."""
    source, copy = new_server(), new_server(path=tmp_path / "copy")
    with source.client() as client, copy.client() as restored:
        shop = client.shop
        # Enough that the dump takes a while.
        shop.orders.insert_many([{"_id": i, "n": 0, "bytes": os.urandom(20_000)} for i in range(500)])
        shop.orders.create_index("n")
        stop = threading.Event()
        writers = [threading.Thread(target=shop_load, args=(source, shop.name, stop, kind)) for kind in ["a", "b"]]
        for writer in writers:
            writer.start()
        try:
            until("payments", lambda: shop.payments.count_documents({}) > 20)
            run("mongodump", source, "--oplog", f"--out={tmp_path}/dump")
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        entries = bson.decode_all((tmp_path / "dump" / "oplog.bson").read_bytes())
        assert len(entries) > 1, "nothing was written while it dumped"
        run("mongorestore", copy, "--oplogReplay", f"{tmp_path}/dump")
        # From the dump's end on, as for a recovery to a point in time. There is no entry twice and none is missing.
        after = {"ts": {"$gt": {"$timestamp": {"t": entries[-1]["ts"].time, "i": entries[-1]["ts"].inc}}}}
        run("mongodump", source, "--db=local", "--collection=oplog.rs", f"--query={json.dumps(after)}", f"--out={tmp_path}/rest")
        (tmp_path / "none").mkdir()
        run("mongorestore", copy, "--oplogReplay", f"--oplogFile={tmp_path}/rest/local/oplog.rs.bson", f"{tmp_path}/none")
        assert contents(restored.shop) == contents(shop)
        assert shop.payments.count_documents({}) == sum(d["paid"] for d in shop.orders.find({"paid": {"$exists": True}}))


def test_replay_up_to_a_moment(new_server, tmp_path):
    """mongorestore --oplogLimit undoes a mistaken write."""
    source, copy = new_server(), new_server(path=tmp_path / "copy")
    with source.client() as client, copy.client() as restored:
        things = client.shop.things
        things.insert_many([{"_id": i} for i in range(10)])
        run("mongodump", source, f"--out={tmp_path}/dump")
        since = client.admin.command("ping")["operationTime"]
        things.insert_one({"_id": "wanted"})
        things.update_one({"_id": 1}, {"$set": {"n": 1}})
        mistake = client.admin.command("ping")["operationTime"]
        things.delete_many({})
        query = json.dumps({"ts": {"$gt": {"$timestamp": {"t": since.time, "i": since.inc}}}})
        run("mongodump", source, "--db=local", "--collection=oplog.rs", f"--query={query}", f"--out={tmp_path}/log")
        limit = f"--oplogLimit={mistake.time}:{mistake.inc + 1}"
        run("mongorestore", copy, "--oplogReplay", f"--oplogFile={tmp_path}/log/local/oplog.rs.bson", limit, f"{tmp_path}/dump")
        found = {d["_id"]: d for d in restored.shop.things.find()}
        assert set(found) == {*range(10), "wanted"} and found[1] == {"_id": 1, "n": 1}
