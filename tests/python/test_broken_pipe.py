"""A command whose output has no reader (any more) ends quietly: `pando lab … | head`."""

import os
import subprocess

import pytest

from harness import BINARY


def printed_without_reader(*words):
    read, write = os.pipe()
    os.close(read)
    with subprocess.Popen([BINARY, *words], stdout=write, stderr=subprocess.PIPE, text=True) as ran:
        os.close(write)
        said = ran.communicate(timeout=60)[1]
    return ran.returncode, said


@pytest.mark.parametrize(
    "words",
    [("--help",), ("--version",), ("serve", "--help"), ("schema", "--help"), ("check", "--help"), ("lab", "list")],
    ids=" ".join,
)
def test_ends_quietly(words):
    code, said = printed_without_reader(*words)
    assert said == ""
    # As a shell shows what the signal ends.
    assert code == 141


def test_a_check_without_reader(new_server):
    server = new_server()
    with server.client() as client:
        client.a.things.insert_one({})
    server.stop()
    assert printed_without_reader("check", server.path) == (141, "")


def test_other_failures_say_what_they_are():
    code, said = printed_without_reader("no-such-command")
    assert code == 2 and "no-such-command" in said
