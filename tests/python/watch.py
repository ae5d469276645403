"""How much memory a process has while something is going on."""

import pathlib
import threading


def resident_mb(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0


class Watch(threading.Thread):
    """The most memory that a process has while this runs."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.stopping = pid, threading.Event()
        self.first = self.most = resident_mb(pid)

    def run(self):
        while not self.stopping.wait(0.05):
            self.most = max(self.most, resident_mb(self.pid))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.join()
