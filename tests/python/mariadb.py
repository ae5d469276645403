"""A MariaDB of a test's own, where one is installed."""

import contextlib
import os
import shutil
import subprocess

from harness import free_port, until

INSTALLED = shutil.which("mariadbd")


class MariaDb:
    def __init__(self, port, socket):
        self.port, self.socket = port, socket

    def sql(self, text):
        """What a statement gives, as text; raises what the client says otherwise."""
        words = ["mariadb", "--no-defaults", "-N", "-B", "-u", "root", f"--socket={self.socket}", "-e", text]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@contextlib.contextmanager
def mariadb(directory, *options):
    """A server with those options, over TCP and a socket, as it answers; root needs no password."""
    directory.mkdir(exist_ok=True)
    data, socket, port = directory / "mariadb", directory / "s", free_port()
    user = ["--user=root"] if os.getuid() == 0 else []
    made = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db", *user]
    subprocess.run(made, capture_output=True, timeout=120, check=True)
    words = [INSTALLED, "--no-defaults", *user, f"--datadir={data}", f"--port={port}", "--bind-address=127.0.0.1", f"--socket={socket}", *options]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        server = MariaDb(port, socket)

        def answers():
            assert process.poll() is None
            with contextlib.suppress(subprocess.CalledProcessError):
                server.sql("SELECT 1")
                return True

        until("it answers", answers, 60)
        yield server
    finally:
        process.terminate()
        process.wait(60)
