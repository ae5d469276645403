"""The PandoDB server: where its program is, and a server of one's own for as long as a block runs."""

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

__all__ = ["Server", "program"]


def program():
    """The path of the server's program: PANDO_BIN, or the one that came with this package."""
    return os.environ.get("PANDO_BIN") or str(Path(__file__).parent / "bin" / "pando")


def main():
    """`pando …`: this process becomes the program."""
    os.execv(program(), ["pando", *sys.argv[1:]])


class Server:
    """A server on loopback. Without `path` its data is in a temporary directory, which is removed at the end.

    `options` are more words for `pando serve`, as "--auth". Ready when the block is entered; ended when it is left, and at
    the latest when this process exits."""

    def __init__(self, *options, path=None, port=0, timeout=30.0):
        self.options, self.path, self.port, self.timeout = options, path, port, timeout
        self._own = self._process = None

    @property
    def uri(self):
        return f"mongodb://127.0.0.1:{self.port}/"

    @property
    def pid(self):
        return self._process and self._process.pid

    def start(self):
        if self._process is not None:
            raise RuntimeError("the server runs already")
        if self.path is None:
            self._own = tempfile.mkdtemp(prefix="pando-")
        directory = Path(self.path or self._own)
        log = directory.with_name(directory.name + ".log") if self.path else directory / "server.log"
        atexit.register(self.stop)
        try:
            # A free port may be taken by another before the server has it: then another one is tried.
            for attempt in range(5):
                port = self.port or _free_port()
                words = ["serve", "--dbpath", str(directory / "data" if self._own else directory), "--port", str(port),
                         "--bind", "127.0.0.1", "--no-console", "--log-path", str(log), "--logappend"]
                before = log.stat().st_size if log.exists() else 0
                self._process = subprocess.Popen([program(), *words, *self._durability(), *self.options], stdin=subprocess.DEVNULL,
                                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                if self._is_ready(log, before):
                    self.port = port
                    return self
                self._process = None
                if self.port:
                    break
            text = log.read_text(errors="replace")[-2000:] if log.exists() else "it wrote no log"
            raise RuntimeError(f"pando serve did not start: {text}")
        except BaseException:
            self.stop()
            raise

    def _durability(self):
        """Nothing waits for the disk where the data goes with the server, unless the user wants it to."""
        given = any(str(option).startswith("--durability") for option in self.options)
        return ["--durability", "none"] if self._own and not given else []

    def _is_ready(self, log, before):
        """Whether the server says that it is ready before it ends or the time is up. Its own log says it: on its port
        somebody else may answer."""
        end = time.monotonic() + self.timeout
        while self._process.poll() is None:
            if log.exists():
                with log.open("rb") as lines:
                    lines.seek(before)
                    if b'"Waiting for connections"' in lines.read():
                        return True
            if time.monotonic() > end:
                raise RuntimeError(f"pando serve was not ready within {self.timeout} s")
            time.sleep(0.002)
        return False

    def stop(self):
        """Ends the server; its data stays where `path` named a directory."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            # The data of a temporary directory are not kept.
            process.kill() if self._own else process.terminate()
            try:
                process.wait(self.timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._own:
            shutil.rmtree(self._own, ignore_errors=True)
            self._own = None
        atexit.unregister(self.stop)

    __enter__ = start

    def __exit__(self, *_):
        self.stop()


def _free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]

