"""The laboratory as a user calls it: on terminals of 80 columns, in two languages, from several processes, and an author's whole test."""

import json
import os
import pathlib
import signal
import subprocess
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


def test_a_page_of_a_run_of_ycsb(server, tmp_path):
    out = tmp_path / "ycsb.json"
    words = ["-p", f"mongodb.url=mongodb://{server.address}/lab_ycsb", "-p", "recordcount=300", "-p", "operationcount=300"]
    assert lab("ycsb", "load", "mongodb", *words).returncode == 0
    done = lab("ycsb", "run", "mongodb", *words, "--out", out)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[OVERALL], RunTime(ms)") and "CLEANUP" not in done.stdout
    assert json.loads(out.read_text())["kind"] == "ycsb" and "Scorecard" in out.with_suffix(".html").read_text()
    assert pathlib.Path(out).is_file()
