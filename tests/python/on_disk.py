"""Reads the files of a data directory by the tables of docs/on-disk-format.md, and by nothing else that is known of them."""

import hashlib
import hmac
import pathlib
import re
import struct

import bson

PAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "docs" / "on-disk-format.md"
TEXT = PAGE.read_text(encoding="utf-8")


def section(heading):
    """What stands below a heading, up to the next one."""
    found = re.split(rf"^#+ {re.escape(heading)}$", TEXT, flags=re.M)
    assert len(found) == 2, f"the page has the heading {heading} {len(found) - 1} times"
    return re.split(r"^#+ ", found[1], flags=re.M)[0]


def tables(heading):
    """The tables of a section, each as a list of rows, each a list of cells without their marks."""
    found = re.findall(r"(?:^\|.*\n)+", section(heading), flags=re.M)
    return [[[c.strip().replace("`", "") for c in line.strip().strip("|").split("|")] for line in t.splitlines()[2:]] for t in found]


class Layout:
    """A table of places: fields of fixed length by their names."""

    def __init__(self, heading, which=0):
        self.fields, end = {}, 0
        for at, size, name, value in tables(heading)[which]:
            if not at.isdigit():
                continue
            assert int(at) == end, f"{heading}: {name} is at {at}, and the field before it ends at {end}"
            self.fields[name] = (end, int(size) if size.isdigit() else None, value)
            end += int(size) if size.isdigit() else 0
        self.bytes = end

    def read(self, data, at=0):
        found = {}
        for name, (offset, size, value) in self.fields.items():
            part = data[at + offset : at + offset + size] if size else data[at + offset :]
            found[name] = part
            if size in (4, 8) and name != "magic":
                found[name] = int.from_bytes(part, "little", signed=value.startswith("i64"))
        return found

    def value(self, name):
        """What the table says that a field has."""
        return self.fields[name][2]


def escaped(text):
    return text.encode().replace(b"\\n", b"\n").replace(b"\\0", b"\0")


def crc32c(data):
    if not CRC:
        for n in range(256):
            for _ in range(8):
                n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
            CRC.append(n)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


CRC = []


class Bytes:
    """Bytes that are read from the front."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, size):
        assert self.at + size <= len(self.data), "the bytes end before"
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, form):
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]

    def varint(self):
        n = shift = 0
        while True:
            byte = self.take(1)[0]
            n |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return n

    def bytes(self):
        return self.take(self.varint())

    def ended(self):
        return self.at == len(self.data)


KINDS = {int(number): (name, form) for number, name, form in tables("Entry")[1]}
EFFECTS = {int(number): form for number, form in tables("Entry")[2]}


def entry(payload, part=False):
    """An entry as a dict."""
    b = Bytes(payload)
    head = b.take(1)[0]
    found = {"collection": b.take(16), "namespace": b.bytes().decode(), "moved": bool(head & 0x10)}
    if head & 0x80:
        found["session"] = (b.take(16), b.number("q"), b.number("i"))
    if head & 0x40:
        found["count"] = (b.number("Q"), b.number("q"), b.number("q"))
    if head & 0x20:
        found["image before"] = bson.decode(b.bytes())
    found["kind"], form = KINDS[head & 0x0F]
    if found["kind"] == "transaction":
        assert not part, "a part is no transaction"
        found["parts"] = [entry(b.bytes(), part=True) for _ in range(b.varint())]
    else:
        found["operation"] = [b.bytes() for _ in range(form.count("bytes:"))]
    found["effects"] = []
    for _ in range(b.varint()):
        tag = b.take(1)[0]
        found["effects"].append((EFFECTS[tag].split(":")[0], *(b.bytes() for _ in range(EFFECTS[tag].count("bytes,")))))
    assert b.ended(), "bytes follow the entry"
    return found


HEADER, FRAME, SEALED = Layout("Segment header"), Layout("Frame"), Layout("Frame", 1)


def frames(path, cipher=None):
    """The frames of a segment; `cipher`: of a first index, what opens its payloads."""
    data = path.read_bytes()
    header = HEADER.read(data)
    assert header["magic"] == escaped(HEADER.value("magic")) and header["version"] == int(HEADER.value("version"))
    assert header["crc32c"] == crc32c(data[: HEADER.fields["crc32c"][0]]) and header["zero"] == 0
    assert path.name == f"{header['first index']:020}.log"
    assert bool(header["flags"] & 2) == (cipher is not None)
    at, before = HEADER.bytes, header["first index"] - 1
    # Eight zeros are no frame: space is reserved behind the last one.
    while any(data[at : at + 8]):
        frame = FRAME.read(data, at)
        end = at + 8 + frame["length"]
        assert frame["crc32c"] == crc32c(data[at : at + 4] + data[at + 8 : end])
        assert frame["index"] == before + 1 and frame["lag"] <= frame["index"]
        payload = data[at + FRAME.bytes : end]
        if cipher:
            nonce = SEALED.fields["opening"][1] + SEALED.fields["count"][1]
            payload = cipher(header["first index"]).decrypt(payload[:nonce], payload[nonce:], data[at + 8 : at + FRAME.bytes])
        yield frame | {"payload": payload}
        at, before = end, frame["index"]
    assert len(data) - at <= 1 << 20 and not any(data[at:])


def entries(directory, cipher=None):
    """All entries of the log of a data directory, in their order."""
    before = 0
    for path in sorted((directory / "log").glob("*.log")):
        for frame in frames(path, cipher):
            assert frame["timestamp"] > before
            before = frame["timestamp"]
            yield frame, entry(frame["payload"])


def keyspace(directory, cipher=None):
    """What the effects of all entries come to: keys and their values. The log has to begin with the directory."""
    there = {}

    def apply(each):
        for what, key, *rest in each["effects"]:
            if what == "put":
                there[key] = rest[0]
            elif what == "delete":
                there.pop(key, None)
            else:
                for other in [k for k in there if key <= k < rest[0]]:
                    del there[other]

    for _, found in entries(directory, cipher):
        for each in [*found.get("parts", []), found]:
            apply(each)
    return there


def parted(key):
    """A key as (tablet, space, id, rest)."""
    return (*struct.unpack(">QBI", key[:13]), key[13:])


def mac(key, *parts):
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def derived(data_key, purpose, salt):
    return mac(data_key, purpose.encode(), b"\0", salt)
