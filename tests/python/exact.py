"""Comparison of documents as BSON: types and order of fields count, as `1 == 1.0` in Python would not."""

import bson
from bson.codec_options import CodecOptions


def same(found, expected):
    found_bytes, expected_bytes = ([bson.encode({"": d}) for d in side] for side in (found, expected))
    if found_bytes != expected_bytes:
        raise AssertionError(f"\n   found {list(found)!r}\nexpected {list(expected)!r}")


def ids(documents):
    return [d["_id"] for d in documents]


RAW = CodecOptions(tz_aware=False)
