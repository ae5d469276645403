"""Clock and disk of a server that a test steers while it runs (`tests/faults/steered.c`)."""

import pathlib
import struct
import subprocess

SOURCE = pathlib.Path(__file__).resolve().parents[1] / "faults" / "steered.c"


def build(directory):
    """Compiles the library, and gives its path."""
    library = pathlib.Path(directory) / "steered.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", SOURCE, "-o", library], check=True)
    return library


class Shim:
    """What one server is told, by a file that it has mapped."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.path.write_bytes(bytes(24))

    def env(self, library):
        return {"LD_PRELOAD": str(library), "PANDO_SHIM": str(self.path)}

    def tell(self, at, number):
        with open(self.path, "r+b") as file:
            file.seek(8 * at)
            file.write(struct.pack("q", number))

    def set_clock(self, seconds):
        """The wall clock is off by that."""
        self.tell(0, seconds)

    def slow_disk(self, seconds):
        """Each sync takes so much longer."""
        self.tell(1, int(seconds * 1e6))

    def fail_sync(self, fails=True):
        """Whether the next sync fails."""
        self.tell(2, int(fails))
