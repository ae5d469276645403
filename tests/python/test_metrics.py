"""Figures over HTTP, as Prometheus collects them."""

import json
import re
import urllib.error
import urllib.request

import pytest
from harness import ROOT, Server, free_port
from replica_set import ReplicaSet
from sharded_cluster import ShardedCluster

LINE = re.compile(r'^(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)(\{member="[^"]*"\})? -?[0-9.]+(e[+-]?[0-9]+)?$')


def figures(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
        assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = page.read().decode()
    found, kinds = {}, {}
    for line in text.splitlines():
        if line.startswith("# "):
            _, what, name, said = line.split(" ", 3)
            assert what in ("HELP", "TYPE") and said
            if what == "TYPE":
                assert name not in kinds and said in ("counter", "gauge", "untyped")
                kinds[name] = said
            continue
        assert LINE.match(line), line
        name, figure = line.rsplit(" ", 1)
        assert name not in found, name
        assert name.split("{")[0] in kinds, f"{name} is not explained before"
        found[name] = float(figure)
    assert kinds["pando_opcounters_insert"] == "counter" and kinds["pando_disk_free_bytes"] == "gauge"
    assert kinds.get("pando_metrics_queryExecutor_hiddenKeysSkipped", "counter") == "counter"
    assert 0 < found["pando_disk_free_bytes"] < found["pando_disk_total_bytes"]
    return found


@pytest.mark.parametrize("options", [[], ["--auth"]])
def test_a_server_tells_its_figures(tmp_path, options):
    port = free_port()
    with Server(tmp_path / "data", "--metrics", port, *options) as server:
        if not options:
            with server.client() as client:
                client.t.c.insert_many([{} for _ in range(7)])
        found = figures(port)
        assert found["pando_opcounters_insert"] == (0 if options else 7)
        assert found["pando_uptime"] >= 0 and found["pando_connections_current"] >= 0
        with pytest.raises(urllib.error.HTTPError) as failure:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30)
        assert failure.value.code == 404


def test_members_tell_of_their_set(tmp_path):
    port = free_port()
    with ReplicaSet(tmp_path) as members:
        members.members[0].kill()
        members.members[0].options += ["--metrics", str(port)]
        members.members[0].start()
        # Before there is a set there is nothing to tell of it.
        assert "pando_replication_term" not in figures(port)
        members.initiate()
        found = figures(port)
        assert found["pando_replication_term"] >= 2 and found["pando_replication_voting_members"] == 3
        states = [found[f'pando_replication_member_state{{member="{m.address}"}}'] for m in members.members]
        assert sorted(states) == [1, 2, 2]
        assert sum(name.startswith("pando_replication_member_lag_entries") for name in found) in (0, 3)


def test_a_router_tells_its_own(tmp_path):
    port = free_port()
    with ShardedCluster(tmp_path, shards=1, router_options=("--metrics", port)) as cluster:
        with cluster.client() as client:
            client.t.c.insert_many([{} for _ in range(7)])
        found = figures(port)
        assert found["pando_connections_current"] >= 1 and "pando_replication_term" not in found


def test_beyond_this_machine_they_have_to_be_wanted(tmp_path):
    server = Server(tmp_path / "data", "--metrics", "0.0.0.0:9")
    with pytest.raises(RuntimeError, match="allow-insecure-bind"):
        server.start()


def test_each_figure_that_dashboard_and_alerts_ask_for_is_there(tmp_path, authority):
    ours = ROOT / "packaging" / "monitoring"
    dashboard = json.loads((ours / "grafana-dashboard.json").read_text())
    asked = [t["expr"] for p in dashboard["panels"] for t in p.get("targets", [])]
    asked += re.findall(r"^ +expr: (.*)$", (ours / "alerts.yml").read_text(), re.MULTILINE)
    wanted = {name for expr in asked for name in re.findall(r"\bpando_\w+", expr)}
    assert len(asked) > 40 and len(wanted) > 40
    port = free_port()
    options = ["--tlsMode", "preferTLS", "--tlsCertificateKeyFile", authority.issue("server"), "--replSet", "rs"]
    with Server(tmp_path / "data", "--metrics", port, *options) as server, server.client() as client:
        client.admin.command("replSetInitiate", {"_id": "rs", "members": [{"_id": 0, "host": server.address}]})
        there = {name.split("{")[0] for name in figures(port)}
    assert wanted - there == set()
