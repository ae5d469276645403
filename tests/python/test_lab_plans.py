"""`pando lab study plans` against a server as a user has it: every index gives the same documents, and the chosen plan is good."""

import json
import subprocess

from harness import BINARY


def test_random_queries_by_every_index(server, client, tmp_path):
    out = tmp_path / "plans.json"
    words = ["lab", "study", "plans", "--url", f"mongodb://{server.address}/lab_plans", "--out", out]
    words += ["--schemas", "5", "--queries", "30", "--docs", "800", "--seed", "3", "--quiet"]
    done = subprocess.run([BINARY, *words], capture_output=True, text=True, timeout=300)
    # A run that gave other documents than another would have ended the study.
    assert done.returncode == 0, done.stderr
    written = [line for line in done.stdout.splitlines() if not line.startswith(("result: ", "page: "))]
    assert max(map(len, written)) <= 80
    assert "95% read at most" in done.stdout
    (choices,) = json.loads(out.read_text())["choices"]
    assert choices["schemas"] == 5 and len(choices["chosen"]) == len(choices["best"]) > 60
    assert all(chosen >= best for chosen, best in zip(choices["chosen"], choices["best"]))
    assert all(chosen <= 10 * best + 200 for chosen, best in zip(choices["chosen"], choices["best"]))
    assert out.with_suffix(".html").read_text().count("plans-passed") > 0
    assert client.lab_plans.list_collection_names() == []
