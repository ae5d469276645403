"""A sharded cluster of real processes on loopback: a configuration set of one member, shards of one or more, and routers."""

import contextlib

import bson
import pytest
from harness import BINARY, Server, until

SMALL = ("--cache", "32MB")


def members(path, name, role, replicas=1, options=()):
    """The servers of one set; the first has the set's name."""
    names = [name, *(f"{name}-{n}" for n in range(1, replicas))]
    return [Server(path / each, "--replSet", name, role, *SMALL, *options) for each in names]


def member(path, name, role):
    return members(path, name, role)[0]


def initiate(servers, name, settings=None):
    """Makes a set of one server or several; `settings` are of its members, by their number."""
    servers = servers if isinstance(servers, list) else [servers]
    listed = [{"_id": n, "host": s.address, **(settings or {}).get(n, {})} for n, s in enumerate(servers)]
    with servers[0].client() as client:
        client.admin.command("replSetInitiate", {"_id": name, "members": listed})
        until(f"{name} has a primary", lambda: client.admin.command("hello")["isWritablePrimary"])
    for server in servers[1:]:
        with server.client() as client:
            until("it is a secondary", lambda c=client: c.admin.command("hello").get("secondary"), 60)


class ShardedCluster:
    """`config`, `sets` of servers by the shard's name, `shards`: the first of each, `routers`; `client` is one of the
    first router. `options` are those of every server, `settings` those of the members of each shard, by number."""

    def __init__(self, path, shards=2, routers=1, replicas=1, options=(), router_options=(), settings=None):
        [self.config] = members(path, "csrs", "--configsvr", options=options)
        self.sets = {f"s{n}": members(path, f"s{n}", "--shardsvr", replicas, options) for n in range(shards)}
        self.shards = {name: servers[0] for name, servers in self.sets.items()}
        self.settings = settings
        uri = f"csrs/{self.config.address}"
        told = ["--configdb", uri, *options, *router_options]
        self.routers = [Server(path / f"r{n}", *told, program=[BINARY, "route"]) for n in range(routers)]

    def servers(self):
        return [self.config, *(s for servers in self.sets.values() for s in servers), *self.routers]

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self):
        for server in self.servers():
            server.launch()
        for server in self.servers():
            if server not in self.routers:
                until("it answers", lambda s=server: answers(s), 60)
        initiate(self.config, "csrs")
        for name, servers in self.sets.items():
            initiate(servers, name, self.settings)
        for router in self.routers:
            until("the router answers", lambda r=router: answers(r), 60)
        with self.client() as client:
            for name, server in self.shards.items():
                assert client.admin.command("addShard", f"{name}/{server.address}")["shardAdded"] == name

    def __exit__(self, *_):
        for server in self.servers():
            server.kill()

    def client(self, router=0, **options):
        options.setdefault("directConnection", False)
        return self.routers[router].client(**options)

    def on_shard(self, name):
        return self.shards[name].client()


@contextlib.contextmanager
def at_rest(path, **options):
    """A running cluster whose balancer moves nothing."""
    with ShardedCluster(path, **options) as running:
        with running.client() as client:
            client.admin.command("balancerStop")
        yield running


def cluster_fixture(**options):
    """A fixture `cluster` for all tests of a file, at rest: `cluster = cluster_fixture(routers=2)`."""

    @pytest.fixture(scope="module", name="cluster")
    def running_cluster(tmp_path_factory):
        with at_rest(tmp_path_factory.mktemp("cluster"), **options) as running:
            yield running

    return running_cluster


def client_fixture(router=0):
    """A fixture `client` of the file's `cluster`. The fixtures `db` and `coll` are its databases and collections then."""

    @pytest.fixture(scope="module", name="client")
    def client_of_router(cluster):
        with cluster.client(router) as connected:
            yield connected

    return client_of_router


def shard(db, name, key, at=(), **options):
    """A sharded collection, cut at these values of the key's first field, its ranges on s0 and s1 in turn."""
    ns = f"{db.name}.{name}"
    admin = db.client.admin
    admin.command("shardCollection", ns, key=key, **options)
    field = next(iter(key))
    for value in at:
        admin.command("split", ns, middle={field: value, **{f: bson.MinKey() for f in list(key)[1:]}})
    for n, value in enumerate(at):
        find = {f: (value if f == field else bson.MinKey()) for f in key}
        admin.command("moveChunk", ns, find=find, to=f"s{(n + 1) % 2}")
    return db[name]


def on_shards(cluster, coll):
    counts = {}
    for name in cluster.shards:
        with cluster.on_shard(name) as direct:
            counts[name] = direct[coll.database.name][coll.name].count_documents({})
    return counts


def documents_on(cluster, coll, name):
    """What one shard has of a collection."""
    with cluster.on_shard(name) as direct:
        return list(direct[coll.database.name][coll.name].find().sort("_id"))


def fail(cluster, name, **data):
    """Sets the fail point `failCommand` on one shard."""
    with cluster.on_shard(name) as direct:
        direct.admin.command("configureFailPoint", "failCommand", mode=data.pop("mode", "alwaysOn"), data=data)


def answers(server):
    if not server.running():
        raise RuntimeError(f"a server ended:\n{server.tail()}")
    try:
        with server.wire(timeout_s=5) as wire:
            return wire.command({"hello": 1, "$db": "admin"})["ok"] == 1
    except (OSError, EOFError):
        return False
