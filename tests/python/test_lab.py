"""The laboratory as a user calls it: on terminals of 80 columns, in two languages, from several processes, and an author's whole test."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
import unicodedata

import pytest
from harness import BINARY, free_port, until

LAB = BINARY.with_name("pando-lab")
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "COLUMNS"}

pytestmark = pytest.mark.skipif(not LAB.exists(), reason="no pando-lab here")


def lab(*words, cwd=None, timeout=300):
    words = [str(LAB), *map(str, words)]
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, cwd=cwd, env=ENVIRONMENT)


def width(line):
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


def is_place(line):
    """A path is not broken: a user copies it."""
    return line.startswith(("result: ", "page: ", "结果", "页面"))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A sweep of two targets that are the same null server by two names, and what it printed."""
    port, out = free_port(), tmp_path_factory.mktemp("lab") / "sweep.json"
    null = subprocess.Popen([LAB, "null", "--port", str(port), "--records", "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        urls = ["--url", f"mongodb://127.0.0.1:{port}/", "--url", f"mongodb://localhost:{port}/"]
        words = ["sweep", "C.S5", "--records", 1000, "--connections", "1,4", "--duration", "300ms", "--repeat", 2, "--quiet"]
        until("the null server answers", lambda: lab("run", "C.S5", "--records", 1000, "--operations", 10, "--quiet", "--out", "-", *urls[:2]).returncode == 0)
        done = lab(*words, *urls, "--out", out)
        assert done.returncode == 0, done.stderr
        yield out, done.stdout
    finally:
        null.kill()
        null.wait()


def test_no_line_is_wider_than_80_columns(results):
    out, printed = results
    texts = [printed, lab("show", out).stdout, lab("show", out, out).stdout, lab("diff", out, out).stdout, lab("--lang", "zh", "show", out).stdout]
    for text in texts:
        wide = [line for line in text.splitlines() if width(line) > 80 and not is_place(line)]
        assert text and not wide, "\n".join(wide)


def test_pages_and_tables_are_in_chinese_too(results, tmp_path):
    out, printed = results
    translated = lab("--lang", "zh", "show", out).stdout
    for english, chinese in [("All steps", "全部步骤"), ("reads, ", "读取，"), ("repeats, targets in turn", "次重复，各数据库轮流")]:
        assert english in printed and chinese in translated and english not in translated, english
    pages = {lang: tmp_path / f"{lang}.html" for lang in ("en", "zh")}
    for lang, page in pages.items():
        assert lab("--lang", lang, "report", out, "--out", page, "--svg", "-").returncode == 0
    english, chinese = (page.read_text() for page in pages.values())
    assert '<html lang="en">' in english and '<html lang="zh-Hans">' in chinese
    assert "Scorecard" in english and "记分卡" in chinese and "Scorecard" not in chinese
    # Above everything else, and with the names of what was measured.
    assert english.index("Scorecard") < english.index("<figure")
    assert english.index("null server") < english.index("<figure")


def test_a_page_says_when_steps_have_fewer_measurements(results, tmp_path):
    out, _ = results
    told = json.loads(out.read_text())
    told["steps"][0] |= {"repeats": []}
    fewer = tmp_path / "fewer.json"
    fewer.write_text(json.dumps(told))
    assert "fewer than 2 times" in " ".join(lab("show", fewer).stdout.split())
    assert "fewer than 2 times" not in " ".join(lab("show", out).stdout.split())


def test_histograms_and_steps_for_other_tools(results):
    out, _ = results
    hlog = lab("show", "--format", "hlog", out).stdout.splitlines()
    assert hlog[0] == "#[Histogram log format version 1.3]" and len(hlog) > 8
    csv = lab("show", "--format", "csv", out).stdout.splitlines()
    assert len(csv) > 4 and csv[0].startswith("study,started,step")


def test_ctrl_c_ends_a_run_whose_server_hangs(tmp_path):
    port = free_port()
    null = subprocess.Popen([LAB, "null", "--port", str(port), "--records", "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        words = ["run", "C.S5", "--records", 1000, "--quiet", "--url", f"mongodb://127.0.0.1:{port}/"]
        until("the null server answers", lambda: lab(*words, "--operations", 10, "--out", "-").returncode == 0)
        # The first step is done, the second one hangs.
        out = tmp_path / "r.json"
        words = [str(LAB), *map(str, words), "--connections", "1,2", "--duration", "4s", "--out", str(out)]
        run = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        journal = tmp_path / "r.json.unfinished"
        until("the first step is done", lambda: journal.is_file() and '"connections":1' in journal.read_text().replace(" ", ""), 60)
        null.send_signal(signal.SIGSTOP)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=60)
        assert run.returncode == 130 and "does not answer" in said, said
        assert journal.is_file()
    finally:
        null.kill()
        null.wait()


@contextlib.contextmanager
def agents(number, *prefixes, listen=("127.0.0.1:0",)):
    """So many agents, each behind what its prefix says, and their places."""
    running, places = [], []
    try:
        for i in range(number):
            prefix = prefixes[i] if prefixes else []
            words = [*prefix, LAB, "agent", "--listen", listen[i % len(listen)]]
            running.append(subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
            places.append(running[-1].stdout.readline().split()[-1])
        yield places
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_three_processes_drive_one_load(server, client, tmp_path):
    out, url = tmp_path / "agents.json", f"mongodb://{server.address}/lab_agents"
    with agents(3) as places:
        words = ["--url", url, "--agents", ",".join(places), "--records", 3000, "--connections", 7, "--quiet", "--out", out, "--force"]
        done = lab("load", "C.S5", *words)
        assert done.returncode == 0, done.stderr
        assert client.lab_agents.usertable.count_documents({}) == 3000
        done = lab("run", "C.S4", "--phase", "run", "--operations", 2000, *words)
        assert done.returncode == 0, done.stderr
    told = json.loads(out.read_text())
    (step,) = told["steps"]
    assert told["settings"]["agents"] == 3 and step["connections"] == 7 and step["operations"] == 2000
    counted = {kind: latency["count"] for kind, latency in step["latency"].items()}
    assert sum(counted.values()) == 2000 and set(counted) == {"READ", "UPDATE"}
    assert client.lab_agents.usertable.count_documents({}) == 3000


def test_an_agent_without_a_secret_stays_on_loopback():
    done = lab("agent", "--listen", "0.0.0.0:0", "--jobs", 0, timeout=20)
    assert done.returncode == 2 and "--secret" in done.stderr


def test_an_agent_whose_run_is_gone_ends_its_load(server, client):
    url = f"mongodb://{server.address}/lab_gone"
    assert lab("load", "C.S5", "--url", url, "--records", 500, "--quiet", "--out", "-").returncode == 0
    with agents(1) as (place,):
        words = ["run", "C.S5", "--phase", "run", "--records", 500, "--duration", "100s", "--url", url, "--agents", place, "--quiet", "--out", "-"]
        run = subprocess.Popen([str(LAB), *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        connections = lambda: client.admin.command("serverStatus")["connections"]["current"]  # noqa: E731
        idle = connections()
        until("the agent reads", lambda: client.admin.command("serverStatus")["opcounters"]["query"] > 2000)
        run.kill()
        run.wait()
        until("the agent's connections are closed", lambda: connections() <= idle)


needs_namespaces = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and iproute2")


@needs_namespaces
def test_three_processes_in_network_namespaces(tmp_path):
    """The server in a namespace of its own, three agents in three others, and the run in a fifth: they meet over a bridge only."""
    tag = f"pl{os.getpid() % 100000}"
    namespaces = [f"{tag}{i}" for i in range(5)]
    place = lambda i: f"10.213.0.{i + 1}"  # noqa: E731
    ip = lambda *words: subprocess.run(["ip", *words], check=True, capture_output=True)  # noqa: E731
    within = lambda i: ["ip", "netns", "exec", namespaces[i]]  # noqa: E731
    secret = tmp_path / "secret"
    secret.write_text("of this test\n")
    server, out = None, tmp_path / "r.json"
    try:
        # The bridge is in the server's namespace, so that nothing of this reaches the machine's own network.
        for i, name in enumerate(namespaces):
            try:
                ip("netns", "add", name)
            except subprocess.CalledProcessError as e:
                pytest.skip(f"no network namespaces here: {e.stderr.decode()}")
            ip("-n", name, "link", "set", "lo", "up")
            if i == 0:
                ip("-n", name, "link", "add", "bridge", "type", "bridge")
                ip("-n", name, "addr", "add", f"{place(0)}/24", "dev", "bridge")
                ip("-n", name, "link", "set", "bridge", "up")
                continue
            ip("link", "add", f"v{tag}{i}", "netns", namespaces[0], "type", "veth", "peer", "name", "out", "netns", name)
            ip("-n", namespaces[0], "link", "set", f"v{tag}{i}", "master", "bridge", "up")
            ip("-n", name, "addr", "add", f"{place(i)}/24", "dev", "out")
            ip("-n", name, "link", "set", "out", "up")
        data = tmp_path / "data"
        data.mkdir()
        words = [*within(0), BINARY, "serve", "--dbpath", data, "--port", "27017", "--bind_ip", place(0), "--allow-insecure-bind"]
        server = subprocess.Popen(list(map(str, words)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with contextlib.ExitStack() as stack:
            places = []
            for i in (1, 2, 3):
                words = [*within(i), LAB, "agent", "--listen", f"{place(i)}:7000", "--secret", secret]
                agent = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                stack.callback(lambda agent=agent: (agent.kill(), agent.wait()))
                places.append(agent.stdout.readline().split()[-1])
            words = ["--url", f"mongodb://{place(0)}:27017/lab", "--agents", ",".join(places), "--agents-secret", secret]
            words += ["--records", 2000, "--connections", 6, "--quiet", "--force", "--out", out]
            run = lambda *more: subprocess.run([*within(4), str(LAB), *map(str, [*more, *words])], capture_output=True, text=True, timeout=120)  # noqa: E731
            until("the server answers", lambda: run("load", "C.S5").returncode == 0, 60)
            done = run("run", "C.S5", "--phase", "run", "--operations", 3000)
            assert done.returncode == 0, done.stderr
            secret.write_text("another one\n")
            refused = run("run", "C.S5", "--phase", "run", "--operations", 10)
            assert refused.returncode == 1 and "secret" in refused.stderr
        (step,) = json.loads(out.read_text())["steps"]
        assert step["operations"] == step["latency"]["READ"]["count"] == 3000 and step["connections"] == 6
    finally:
        if server:
            server.terminate()
            server.wait()
        for name in namespaces:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def seed(cwd, *words):
    return lab("seed", *words, "--quiet", cwd=cwd, timeout=600)


def test_an_authors_test_is_planned_and_refused_where_it_does_not_fit(tmp_path):
    for number in range(1, 6):
        done = seed(tmp_path, number, "--plan", "--scale", "0.0001")
        assert done.returncode == 0 and "in all about" in done.stdout, done.stderr
    whole = seed(tmp_path, 1, "--scale", 1)
    assert whole.returncode == 2 and "does not fit" in whole.stderr and "in all about 15.1 h" in whole.stdout
    assert not list(tmp_path.iterdir()), "nothing was begun"


def test_an_authors_test_ends_with_its_statements_and_goes_on_where_it_was_cut(tmp_path):
    words = ["2", "--scale", "0.00005", "--hurry", "100", "--launch", "pando"]
    folder = tmp_path / "lab-results" / "seed-2-0.00005"
    first = subprocess.Popen([str(LAB), "seed", *words, "--quiet"], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    journal = folder / "keys-random.json.unfinished"
    until("the second stage has a step", lambda: journal.is_file() and '"key given"' in journal.read_text(), 120)
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = seed(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "keys-constant: done already" in done.stdout
    told = json.loads((folder / "statements.json").read_text())
    verdicts = {s["author"]: s["verdict"] for s in told["statements"]}
    assert len(verdicts) == 8 and set(verdicts.values()) <= {"holds", "does not hold", "not shown here"}
    # There is no MySQL to compare with.
    assert verdicts["MongoDB without id is faster than MySQL without key."] == "not shown here"
    assert verdicts["Without an id inserts are faster than with one."] != "not shown here"
    resumed = json.loads((folder / "keys-random.json").read_text())
    assert any("Resumed with" in note for note in resumed["notes"])
    assert all(s["figure"] for s in told["statements"])
    page = (folder / "index.html").read_text()
    assert "not shown here" in page and page.index("statements") < page.index("<figure")
    assert all(width(line) <= 80 for line in done.stdout.splitlines() if not is_place(line)), done.stdout
    again = time.monotonic()
    assert seed(tmp_path, *words).returncode == 0 and time.monotonic() - again < 30


def test_a_page_of_a_run_of_ycsb(server, tmp_path):
    out = tmp_path / "ycsb.json"
    words = ["-p", f"mongodb.url=mongodb://{server.address}/lab_ycsb", "-p", "recordcount=300", "-p", "operationcount=300"]
    assert lab("ycsb", "load", "mongodb", *words).returncode == 0
    done = lab("ycsb", "run", "mongodb", *words, "--out", out)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[OVERALL], RunTime(ms)") and "CLEANUP" not in done.stdout
    assert json.loads(out.read_text())["kind"] == "ycsb" and "Scorecard" in out.with_suffix(".html").read_text()
    assert pathlib.Path(out).is_file()
