"""A round of each kind of scripts/differential.py, which compares two ways to the same answer at random.

PANDO_SEED replays another round. The script runs them for hours.
"""

import os
import random
import sys

import pytest
from harness import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from differential_kinds import KINDS  # noqa: E402

SEED = int(os.environ.get("PANDO_SEED", 4))


@pytest.mark.parametrize("name", KINDS)
def test_both_ways_agree(name, tmp_path):
    with KINDS[name](tmp_path) as kind:
        kind.round(random.Random(f"{name} {SEED}"))
        assert kind.compared > 20
