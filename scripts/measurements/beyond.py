"""The server's side of scripts/bench-beyond.sh: has the laboratory load and run the scenarios, and prints its figures.

The lines of JSON have the names that the storage room's example `engine_ycsb` gives.
"""

import json
import pathlib
import subprocess

import pymongo

from .load import settle, stolen


def main(given):
    pando, host, records, connections, seconds, warmup, work, scenarios = given
    url, out = f"mongodb://{host}", pathlib.Path(work) / "lab.json"
    client = pymongo.MongoClient(url, directConnection=True, serverSelectionTimeoutMS=60_000)
    client.admin.command("ping")

    def status():
        return client.admin.command("serverStatus")["pandodb"]

    def disk_reads():
        return status()["loops"]["diskReads"] + status()["engine"]["batchedReads"]

    def lab(*words):
        command = [pando, "lab", *words, "--url", url, "--records", records, "--quiet", "--force", "--out", out]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        step = json.loads(out.read_text())["steps"][0]
        out.unlink()
        return {
            "operations": step["operations"],
            "seconds": round(step["seconds"], 2),
            "rate": int(step["per_second"]),
            "cpu_us_per_op": round(step["server_cpu_us"], 2),
            "client_cpu_us_per_op": round(step["client_cpu_us"], 2),
        }, step["latency"]

    load, _ = lab("load", "C.S5", "-p", "mongodb.batchsize=100", "--connections", "4")
    settle(client)
    engine = status()["engine"]
    print(json.dumps({"target": "server", "scenario": "load", **load, "data_bytes": engine["sstBytes"]}), flush=True)
    for scenario in scenarios.split():
        before, reads = stolen(), disk_reads()
        times = ("--duration", f"{seconds}s", "--warmup", f"{warmup}s")
        figures, latency = lab("run", scenario, "--phase", "run", "--connections", connections, *times)
        for kind, of in latency.items():
            figures |= {f"{kind.lower()}_{q}_us": round(of[f"{q}_us"], 1) for q in ("p50", "p99", "max")}
        figures["stolen_seconds"] = round(stolen() - before, 2)
        # With those of the seconds that are not measured.
        figures["disk_reads"] = disk_reads() - reads
        figures["row_share_bytes"] = status()["engine"]["rowShareBytes"]
        print(json.dumps({"target": "server", "scenario": scenario, **figures}), flush=True)

