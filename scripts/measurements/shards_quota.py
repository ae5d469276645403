"""What shards add up to: inserts and targeted reads through a router at several shards, to those at one shard with the same quota of CPU.

    scripts/measure.py shards_quota target/release/pando [shards, 3] [quota, 0.15] [seconds, 15] [rounds, 3] [connections, 32]

Needs root and a cgroup controller for CPU. Each shard, of one member, has a network namespace of its own, and its process a quota: so many
CPUs, of each 20 ms. Router, configuration set and load client have none: the machine must have enough CPU left for them, or the figure is
theirs. pando-lab, which lies beside the server, inserts documents of
1 KB with w: 1 into a collection that is sharded by a hashed _id, then reads documents by a uniform _id. Prints for each run the rate, and
how much of its quota each shard has used; then the medians' ratios. The bar is 2.5 for three shards.
"""

import contextlib
import os
import pathlib
import re
import statistics
import subprocess
import time

from harness import BINARY
from pymongo import MongoClient

from .common import cpu, folder, numbers

HUB = f"pandoq{os.getpid() % 10_000}"
PERIOD_US = 20_000
PORT = 36_001
BAR = 2.5


def run(*words):
    subprocess.run([str(w) for w in words], check=True)


def address(n):
    """Of a shard's namespace; the last one is the bridge's."""
    return f"10.79.0.{n + 1}"


@contextlib.contextmanager
def network(shards):
    """A namespace for each shard, on a bridge of the machine's own."""
    own = [f"{HUB}s{n}" for n in range(shards)]
    try:
        run("ip", "link", "add", HUB, "type", "bridge")
        run("ip", "addr", "add", f"{address(253)}/24", "dev", HUB)
        run("ip", "link", "set", HUB, "up")
        for n, name in enumerate(own):
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", name, "master", HUB, "up")
            run("ip", "-n", name, "addr", "add", f"{address(n)}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
        yield
    finally:
        for name in own:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "link", "del", HUB], stderr=subprocess.DEVNULL)


class Quota:
    """A cgroup of which the processes get so many CPUs; of either version."""

    def __init__(self, name, cpus):
        first = pathlib.Path("/sys/fs/cgroup/cpu")
        self.old = first.is_dir()
        self.place = (first if self.old else pathlib.Path("/sys/fs/cgroup")) / name
        self.place.mkdir()
        share = int(cpus * PERIOD_US)
        if self.old:
            (self.place / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.place / "cpu.cfs_quota_us").write_text(str(share))
        else:
            (self.place / "cpu.max").write_text(f"{share} {PERIOD_US}")

    def take(self, pid):
        (self.place / "cgroup.procs").write_text(str(pid))

    def remove(self):
        for _ in range(50):
            with contextlib.suppress(OSError):
                self.place.rmdir()
                return
            time.sleep(0.1)


class Cluster:
    """A configuration set, a router and so many shards, each in its namespace."""

    def __init__(self, place, shards, quota):
        self.place, self.processes, self.quotas = place, {}, []
        bridge = address(253)
        self.start("config", None, bridge, PORT, "--replSet", "csrs", "--configsvr")
        for n in range(shards):
            self.start(f"s{n}", n, address(n), PORT, "--replSet", f"s{n}", "--shardsvr")
        self.initiate("csrs", f"{bridge}:{PORT}")
        for n in range(shards):
            self.initiate(f"s{n}", f"{address(n)}:{PORT}")
        told = ["--configdb", f"csrs/{bridge}:{PORT}", "--allow-insecure-bind"]
        self.launch("router", None, [BINARY, "route", *told, "--dbpath", place / "router", "--bind_ip", bridge, "--port", PORT + 1])
        self.url = f"mongodb://{bridge}:{PORT + 1}/t?w=1"
        self.client = MongoClient(self.url, serverSelectionTimeoutMS=30_000)
        for n in range(shards):
            self.client.admin.command("addShard", f"s{n}/{address(n)}:{PORT}")
        self.client.admin.command("balancerStop")
        for n in range(shards):
            limit = Quota(f"{HUB}s{n}", quota)
            limit.take(self.processes[f"s{n}"].pid)
            self.quotas.append(limit)

    def start(self, name, namespace, host, port, *options):
        words = [BINARY, "serve", "--dbpath", self.place / name, "--bind_ip", host, "--port", port, "--cache", "256MB"]
        self.launch(name, namespace, [*words, "--allow-insecure-bind", *options])

    def launch(self, name, namespace, words):
        into = [] if namespace is None else ["nsenter", f"--net=/run/netns/{HUB}s{namespace}"]
        with open(self.place / f"{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen([str(w) for w in (*into, *words)], stdout=log, stderr=log)

    def initiate(self, name, host):
        with MongoClient(f"mongodb://{host}/?directConnection=true", serverSelectionTimeoutMS=60_000) as client:
            client.admin.command("replSetInitiate", {"_id": name, "members": [{"_id": 0, "host": host}]})
            while not client.admin.command("hello")["isWritablePrimary"]:
                time.sleep(0.05)

    def used(self):
        return {name: cpu(process) for name, process in self.processes.items()}

    def end(self):
        for process in self.processes.values():
            process.kill()
            process.wait()
        for limit in self.quotas:
            limit.remove()


def lab(url, work, seconds, connections, records):
    """Operations a second, the first second left out, and how many were acknowledged."""
    load = [BINARY.parent / "pando-lab", "ycsb", work[0], "mongodb", "-s", *work[1:], "-threads", connections]
    given = {"mongodb.url": url, "status.interval": 1, "maxexecutiontime": seconds, "recordcount": records}
    given |= {"operationcount": 1_000_000_000, "requestdistribution": "uniform"}
    load += [word for name, value in given.items() for word in ("-p", f"{name}={value}")]
    done = subprocess.run([str(word) for word in load], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    failed = re.findall(r"\[(?:INSERT|READ)(?:-FAILED)?\], Return=(?!OK)\S+ \d+", done.stdout)
    assert not failed, failed
    told = sum(int(n) for n in re.findall(r"\[(?:INSERT|READ)\], Return=OK, (\d+)", done.stdout))
    rates = [float(n) for n in re.findall(r"([\d.]+) current ops/sec", done.stderr)][1:seconds]
    return statistics.mean(rates), told


def measured(cluster, what, shards, quota, load):
    """The rate of a load, with what the servers have used meanwhile."""
    before, began = cluster.used(), time.monotonic()
    rate, told = load()
    took = time.monotonic() - began
    used = {name: (now - before[name]) / took for name, now in cluster.used().items()}
    of_quota = ", ".join(f"{used[f's{n}'] / quota:.0%}" for n in range(shards))
    print(f"{shards} shards: {rate:8.0f} {what}/s; of their quotas {of_quota}; router {used['router']:.2f} CPU", flush=True)
    return rate, told


def one_size(shards, quota, seconds, connections):
    """Inserts and reads a second at so many shards."""
    with folder() as place, network(shards):
        cluster = Cluster(place, shards, quota)
        try:
            cluster.client.admin.command("shardCollection", "t.usertable", key={"_id": "hashed"})
            insert = lambda: lab(cluster.url, ["load", "--overwrite"], seconds, connections, 100_000_000)  # noqa: E731
            inserts, told = measured(cluster, "inserts", shards, quota, insert)
            found = cluster.client.t.usertable.count_documents({})
            assert found == told, f"{told} inserts were acknowledged, {found} documents are there"
            read = lambda: lab(cluster.url, ["run", "-p", "readproportion=1", "-p", "updateproportion=0"], seconds, connections, found)  # noqa: E731
            reads, _ = measured(cluster, "reads", shards, quota, read)
            return inserts, reads
        finally:
            cluster.end()


def main(given):
    shards, quota, seconds, rounds, connections = numbers(given, 3, 0.15, 15, 3, 32)
    ratios = []
    for _ in range(rounds):
        alone = one_size(1, quota, seconds, connections)
        many = one_size(shards, quota, seconds, connections)
        ratios.append([m / a for m, a in zip(many, alone)])
        print(f"{shards} shards to one: inserts {ratios[-1][0]:.2f}, reads {ratios[-1][1]:.2f}", flush=True)
    inserts, reads = (statistics.median(column) for column in zip(*ratios))
    print(f"medians of {rounds}: inserts {inserts:.2f}, reads {reads:.2f} (bar for three shards: {BAR})")

