"""Gives the wheel the tag of the platform of its binary, which scripts/package.sh names in PANDO_WHEEL_PLATFORM."""

import os

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Tag(BuildHookInterface):
    def initialize(self, version, build_data):
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + os.environ["PANDO_WHEEL_PLATFORM"]
