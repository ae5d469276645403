"""A sharded cluster of real processes on loopback: a configuration set and shards of one member each, and routers."""

import contextlib

from harness import BINARY, Server, until

SMALL = ("--cache", "32MB")


def member(path, name, role):
    return Server(path / name, "--replSet", name, role, *SMALL)


def initiate(server, name):
    with server.client() as client:
        client.admin.command("replSetInitiate", {"_id": name, "members": [{"_id": 0, "host": server.address}]})
        until(f"{name} has a primary", lambda: client.admin.command("hello")["isWritablePrimary"])


class ShardedCluster:
    """`config`, `shards` by name, `routers`; `client` is one of the first router."""

    def __init__(self, path, shards=2, routers=1):
        self.config = member(path, "csrs", "--configsvr")
        self.shards = {f"s{n}": member(path, f"s{n}", "--shardsvr") for n in range(shards)}
        uri = f"csrs/{self.config.address}"
        self.routers = [Server(path / f"r{n}", "--configdb", uri, program=[BINARY, "route"]) for n in range(routers)]

    def servers(self):
        return [self.config, *self.shards.values(), *self.routers]

    def __enter__(self):
        for server in self.servers():
            server.launch()
        for server in [self.config, *self.shards.values()]:
            until("it answers", lambda s=server: answers(s), 60)
        initiate(self.config, "csrs")
        for name, server in self.shards.items():
            initiate(server, name)
        for router in self.routers:
            until("the router answers", lambda r=router: answers(r), 60)
        with self.client() as client:
            for name, server in self.shards.items():
                assert client.admin.command("addShard", f"{name}/{server.address}")["shardAdded"] == name
        return self

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


def answers(server):
    if not server.running():
        raise RuntimeError(f"a server ended:\n{server.tail()}")
    try:
        with server.wire(timeout_s=5) as wire:
            return wire.command({"hello": 1, "$db": "admin"})["ok"] == 1
    except (OSError, EOFError):
        return False
