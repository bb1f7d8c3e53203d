"""The kv protocol as pyzmq sees it, written from PROTOCOL.md alone: what requests mean.

    conformance.py CHAPTER KV [PUBLISH]

Each chapter is a function `chapter_…`, here, in conformance_delivery.py or in conformance_scans.py; it talks to a server
that the caller has started for it. A failed check ends the script with a traceback.
"""

import os
import sys
import time

import conformance_delivery
import conformance_scans
from conformance_peer import *


def chapter_tables(kv):
    """Names of tables, at their edges, and all that can be wrong with a table."""
    c = Client(kv)
    c.expect([OK], PING)
    c.expect([OK], LIST_TABLES)
    c.expect(error("TABLE NOT FOUND"), DELETE_TABLE, b"tab")
    c.expect([OK], CREATE_TABLE, b"tab")
    c.expect(error("TABLE EXISTS"), CREATE_TABLE, b"tab")
    c.expect(error("TABLE EXISTS"), CREATE_TABLE, b"tab\0")
    c.expect([OK], UPDATE, b"tab\0", b"k", b"v")
    c.expect([OK, b"v"], GET, b"tab", b"k")
    c.expect([OK, b"tab", be(1)], LIST_TABLES)
    c.expect([OK], DELETE_TABLE, b"tab\0")
    c.expect(error("TABLE NOT FOUND"), GET, b"tab", b"k")
    c.expect([OK], CREATE_TABLE, b"tab\0")
    c.expect(error("KEY NOT FOUND"), GET, b"tab", b"k")
    c.expect([OK, b"tab\0", be(0)], LIST_TABLES)
    for name in [b"x", b"\xff\xfe", b"n" * 254, b"m" * 254 + b"\0"]:
        c.expect([OK], CREATE_TABLE, name)
        c.expect([OK], UPDATE, name, b"k", b"v")
    listed = c.ok(LIST_TABLES)
    check(sorted(listed[0::2]), sorted([b"tab\0", b"x", b"\xff\xfe", b"n" * 254, b"m" * 254 + b"\0"]))
    for name in [b"", b"\0", b"a\0b", b"a\0\0", b"n" * 255, b"n" * 255 + b"\0", b"n" * 1000]:
        c.expect(error("BAD TABLE NAME"), CREATE_TABLE, name)
        c.expect(error("BAD TABLE NAME"), DELETE_TABLE, name)
        c.expect(error("BAD TABLE NAME"), GET, name, b"k")
    for request in [*each_command(b"nowhere", b"k"), [SCAN, b"nowhere", b"", be(1), b"\0"]]:
        c.expect(error("TABLE NOT FOUND"), *request)


GOOD = {
    "value": b"v",
    "ttl": be(5),
    "ttl-or-empty": b"",
    "version": be(7),
    "delta": signed(-1),
    "cursor": b"",
    "count": be(1),
    "fields": b"\0",
    "durability": b"\0",
    "prefix": b"",
    "epoch": be(1),
    "incarnation": be(1),
    "sequence": be(1),
}
LONG_KEY, LONG_VALUE = b"k" * 65, b"v" * 1025
# A frame that is wrong, and the refusal.
BAD = {
    "table": (b"", "BAD TABLE NAME"),
    "key": (LONG_KEY, "KEY TOO LONG"),
    "prefix": (LONG_KEY, "KEY TOO LONG"),
    "value": (LONG_VALUE, "VALUE TOO LONG"),
    "ttl": (b"\1", "BAD TTL"),
    "ttl-or-empty": (b"\1", "BAD TTL"),
    "cursor": (b"c" * 33, "BAD CURSOR"),
    **dict.fromkeys(["version", "delta", "count", "epoch", "incarnation", "sequence"], (b"\1\2\3", "BAD REQUEST")),
    "fields": (b"\4", "BAD REQUEST"),
    "options": (b"\4", "BAD REQUEST"),
    "durability": (b"\3", "BAD REQUEST"),
}


def each_command(table, key):
    """A request of each command that works on elements, with its optional field and without it."""
    frames = {**GOOD, "table": table, "key": key}
    return [
        [bytes([command.code]), *command.arguments(frames.get, optional)]
        for command in COMMANDS
        if "key" in command.once + command.repeated
        for optional in (False, True)
    ]


def chapter_elements(kv):
    """Keys and values at their edges; every command on what is there and on what is not."""
    c = Client(kv)
    c.ok(CREATE_TABLE, b"t")
    for key in [b"", b"k", b"k" * 64, bytes(range(64)), b"\0", b"\0\0"]:
        for value in [b"", b"v", b"\0" * 1024]:
            c.expect([OK], UPDATE, b"t", key, value)
            c.expect([OK, value], GET, b"t", key)
        c.expect([OK, b"\0" * 1024], DELETE, b"t", key)
        c.expect(error("KEY NOT FOUND"), GET, b"t", key)
        c.expect(error("KEY NOT FOUND"), DELETE, b"t", key)
        c.expect(error("KEY NOT FOUND"), GET_ENTRY, b"t", key)
        c.expect(error("KEY NOT FOUND"), TOUCH, b"t", key, be(1))
        c.expect(error("VERSION MISMATCH", be(0)), COMPARE_AND_SWAP, b"t", key, be(1), b"v")
        c.expect(error("VERSION MISMATCH", be(0)), COMPARE_AND_DELETE, b"t", key, be(1))
        c.expect([OK, ERROR, b""], GET_MANY, b"t", key)
    for request in each_command(b"t", b"k" * 65):
        c.expect(error("KEY TOO LONG"), *request)
    for request in [
        [UPDATE, b"t", b"k", b"v" * 1025],
        [UPDATE, b"t", b"k", b"v" * 1_000_000, be(1)],
        [COMPARE_AND_SWAP, b"t", b"k", be(0), b"v" * 1025],
        [UPDATE_MANY, b"t", b"", b"k", b"v", b"l", b"v" * 1025],
        [RESTORE, b"t", b"k", b"v" * 1025, be(7), be(0)],
    ]:
        c.expect(error("VALUE TOO LONG"), *request)
    c.expect([OK, b"t", be(0)], LIST_TABLES)


def chapter_versions(kv):
    """Versions grow and never come back; a stale compare fails."""
    c = Client(kv)
    c.ok(CREATE_TABLE, b"t")
    seen = []

    def version_grows():
        _, version, remaining = c.entry(b"t", b"k")
        check(remaining, FOREVER)
        assert not seen or version > seen[-1], (seen, version)
        seen.append(version)
        return version

    c.ok(UPDATE, b"t", b"k", b"1")
    first = version_grows()
    c.ok(UPDATE, b"t", b"k", b"2")
    second = version_grows()
    check(c.entry(b"t", b"k")[1], second, "a read changes no version")
    c.expect(error("VERSION MISMATCH", be(second)), COMPARE_AND_SWAP, b"t", b"k", be(first), b"no")
    c.expect(error("VERSION MISMATCH", be(second)), COMPARE_AND_SWAP, b"t", b"k", be(0), b"no")
    c.expect(error("VERSION MISMATCH", be(second)), COMPARE_AND_SWAP, b"t", b"k", be(FOREVER), b"no")
    [swapped] = c.ok(COMPARE_AND_SWAP, b"t", b"k", be(second), b"3")
    check(c.entry(b"t", b"k"), (b"3", number(swapped), FOREVER))
    version_grows()
    c.expect(error("VERSION MISMATCH", swapped), COMPARE_AND_DELETE, b"t", b"k", be(second))
    c.expect([OK, b"3"], COMPARE_AND_DELETE, b"t", b"k", swapped)
    c.expect(error("VERSION MISMATCH", be(0)), COMPARE_AND_SWAP, b"t", b"k", swapped, b"no")
    [created] = c.ok(COMPARE_AND_SWAP, b"t", b"k", be(0), b"4")
    check(version_grows(), number(created))
    c.ok(DELETE, b"t", b"k")
    c.ok(UPDATE, b"t", b"k", b"5")
    version_grows()
    c.ok(DELETE_TABLE, b"t")
    c.ok(CREATE_TABLE, b"t")
    c.expect(error("VERSION MISMATCH", be(0)), COMPARE_AND_SWAP, b"t", b"k", be(seen[-1]), b"no")
    c.ok(UPDATE, b"t", b"k", b"6")
    version_grows()
    for _ in range(100):
        c.ok(DELETE_TABLE, b"t")
        c.ok(CREATE_TABLE, b"t")
        c.ok(UPDATE, b"t", b"k", b"7")
        version_grows()
    # A new table takes the versions of another one, and its next version is above them.
    old = seen[0]
    c.ok(CREATE_TABLE, b"copy")
    c.expect([OK, b"\1"], RESTORE, b"copy", b"k", b"1", be(old), be(100))
    for version in (old - 1, old):
        c.expect([OK, b"\0"], RESTORE, b"copy", b"k", b"no", be(version), be(0))
    value, version, remaining = c.entry(b"copy", b"k")
    check((value, version), (b"1", old))
    assert 80_000 < remaining <= 100_000, remaining
    [swapped] = c.ok(COMPARE_AND_SWAP, b"copy", b"k", be(old), b"2")
    assert number(swapped) > old, (swapped, old)
    c.expect([OK, b"\0"], RESTORE, b"copy", b"k", b"no", be(old), be(0))
    c.ok(UPDATE, b"copy", b"own", b"v")
    c.expect(error("OUT OF RANGE"), RESTORE, b"copy", b"l", b"v", be(old), be(0))


def chapter_ttls(kv):
    """Seconds in both byte orders, milliseconds, what keeps and what moves a deadline, and expiry that is never early."""
    c = Client(kv)
    c.ok(CREATE_TABLE, b"t")

    def remaining(*update, at_most):
        c.ok(*update)
        left = c.entry(b"t", b"k")[2]
        assert at_most - 20_000 < left <= at_most, (show(list(update)), left)

    for seconds in [100, 255, 256, 65_536, 2**24, 2**31, 2**32 - 1]:
        for encoded in [be(seconds), le(seconds)]:
            remaining(UPDATE, b"t", b"k", b"v", encoded, at_most=seconds * 1000)
            remaining(TOUCH, b"t", b"k", encoded, at_most=seconds * 1000)
            remaining(UPDATE_MANY, b"t", encoded, b"k", b"v", at_most=seconds * 1000)
            version = be(c.entry(b"t", b"k")[1])
            remaining(COMPARE_AND_SWAP, b"t", b"k", version, b"v", encoded, at_most=seconds * 1000)
    for count in [20_001, 2**32, 2**42 - 1]:
        encoded = millis(count)
        remaining(UPDATE, b"t", b"k", b"v", encoded, at_most=count)
        remaining(TOUCH, b"t", b"k", encoded, at_most=count)
        remaining(UPDATE_MANY, b"t", encoded, b"k", b"v", at_most=count)
        version = be(c.entry(b"t", b"k")[1])
        remaining(COMPARE_AND_SWAP, b"t", b"k", version, b"v", encoded, at_most=count)
        c.expect([OK, b"v"], GET_AND_TOUCH, b"t", b"k", millis(count))
        c.ok(DELETE, b"t", b"k")
        remaining(INCREMENT, b"t", b"k", be(1), encoded, at_most=count)
    c.ok(UPDATE, b"t", b"k", b"v", millis(0))
    check(c.entry(b"t", b"k")[2], FOREVER)
    # 2^32 does not fit; read as little-endian it is 2^24.
    remaining(UPDATE, b"t", b"k", b"v", be(2**32), at_most=2**24 * 1000)
    bad_millis = [millis(2**42), millis(2**64 - 1), b"\1" + le(1500), b"\2" + be(1500), millis(1) + b"\0"]
    bad_seconds = [b"", b"\1", be(1)[1:], be(1) + b"\0", b"\1\0\0\0\0\0\0\1", be(2**64 - 1), be(2**63 + 1)]
    for bad in bad_seconds + bad_millis:
        c.expect(error("BAD TTL"), UPDATE, b"t", b"k", b"v", bad)
        c.expect(error("BAD TTL"), TOUCH, b"t", b"k", bad)
        c.expect(error("BAD TTL"), COMPARE_AND_SWAP, b"t", b"k", be(0), b"v", bad)
        if bad:
            c.expect(error("BAD TTL"), UPDATE_MANY, b"t", bad, b"k", b"v")
    # Without a TTL a write keeps the deadline.
    remaining(TOUCH, b"t", b"k", be(500), at_most=500_000)
    remaining(UPDATE, b"t", b"k", b"w", at_most=500_000)
    remaining(UPDATE_MANY, b"t", b"", b"k", b"w", at_most=500_000)
    version = be(c.entry(b"t", b"k")[1])
    remaining(COMPARE_AND_SWAP, b"t", b"k", version, b"w", at_most=500_000)
    # TOUCH keeps the value and gives a new version; a TTL of 0 ends the deadline.
    before = c.entry(b"t", b"k")
    c.expect([OK], TOUCH, b"t", b"k", be(0))
    after = c.entry(b"t", b"k")
    check((after[0], after[2]), (before[0], FOREVER))
    assert after[1] > before[1], (before, after)
    c.expect(error("VERSION MISMATCH", be(after[1])), COMPARE_AND_DELETE, b"t", b"k", be(before[1]))
    for write in [[UPDATE, b"t", b"k", b"v", be(0)], [UPDATE_MANY, b"t", be(0), b"k", b"v"]]:
        c.ok(TOUCH, b"t", b"k", be(500))
        c.ok(*write)
        check(c.entry(b"t", b"k")[2], FOREVER)
    c.ok(DELETE, b"t", b"k")
    c.ok(UPDATE, b"t", b"k", b"v")
    check(c.entry(b"t", b"k")[2], FOREVER, "a new element has no deadline")
    # An element is there until its time is over, and then for no command.
    c.ok(DELETE, b"t", b"k")
    for ttl, seconds in [(millis(1), 0.001), (millis(1500), 1.5), (be(1), 1.0)]:
        start = time.monotonic()
        [version] = c.ok(COMPARE_AND_SWAP, b"t", b"k", be(0), b"v", ttl)
        while c.ask(GET, b"t", b"k") == [OK, b"v"]:
            pass
        assert time.monotonic() - start >= seconds, "an element has expired early"
        assert time.monotonic() - start < 20.0, "an element has not expired"
    c.expect(error("KEY NOT FOUND"), GET, b"t", b"k")
    c.expect(error("KEY NOT FOUND"), GET_ENTRY, b"t", b"k")
    c.expect(error("KEY NOT FOUND"), TOUCH, b"t", b"k", be(5))
    c.expect(error("KEY NOT FOUND"), DELETE, b"t", b"k")
    c.expect(error("VERSION MISMATCH", be(0)), COMPARE_AND_SWAP, b"t", b"k", version, b"v")
    c.expect([OK, ERROR, b""], GET_MANY, b"t", b"k")
    [created] = c.ok(COMPARE_AND_SWAP, b"t", b"k", be(0), b"v")
    assert created > version
    check(c.entry(b"t", b"k")[2], FOREVER, "an old deadline is not kept")


def chapter_many(kv):
    """GET_MANY and UPDATE_MANY, from one to 1024."""
    c = Client(kv)
    c.ok(CREATE_TABLE, b"t")
    pairs = [(b"k%d" % index, b"v%d" % index) for index in range(1024)]
    flat = [frame for pair in pairs for frame in pair]
    c.expect([OK], UPDATE_MANY, b"t", b"", *flat)
    c.expect([OK, b"t", be(1024)], LIST_TABLES)
    found = [frame for _, value in pairs for frame in (OK, value)]
    c.expect([OK, *found], GET_MANY, b"t", *[key for key, _ in pairs])
    c.expect([OK, OK, b"v1", ERROR, b"", OK, b"v1"], GET_MANY, b"t", b"k1", b"no", b"k1")
    c.expect([OK], UPDATE_MANY, b"t", b"", b"same", b"1", b"same", b"2")
    c.expect([OK, b"2"], GET, b"t", b"same")
    c.expect(error("BAD REQUEST"), GET_MANY, b"t")
    c.expect(error("BAD REQUEST"), GET_MANY, b"t", *[b"k"] * 1025)
    c.expect(error("BAD REQUEST"), UPDATE_MANY, b"t", b"")
    c.expect(error("BAD REQUEST"), UPDATE_MANY, b"t", b"", b"k")
    c.expect(error("BAD REQUEST"), UPDATE_MANY, b"t", b"", *flat, b"k")
    c.expect(error("BAD REQUEST"), UPDATE_MANY, b"t", b"", *flat, b"k", b"v")
    # If one pair is refused, none is applied.
    c.expect(error("KEY TOO LONG"), UPDATE_MANY, b"t", b"", b"new", b"v", b"k" * 65, b"v")
    c.expect(error("KEY TOO LONG"), UPDATE_MANY, b"t", b"", b"new", b"v", b"k" * 65, b"v" * 1025)
    c.expect(error("VALUE TOO LONG"), UPDATE_MANY, b"t", b"", b"new", b"v", b"k", b"v" * 1025, b"k" * 65, b"v")
    c.expect(error("KEY NOT FOUND"), GET, b"t", b"new")
    largest = [frame for index in range(1024) for frame in (b"%064d" % index, b"v" * 1024)]
    c.expect([OK], UPDATE_MANY, b"t\0", be(60), *largest)
    check(len(b"".join(c.ok(GET_MANY, b"t", *largest[0::2]))), 1024 * 1025)


def chapter_faults(kv):
    """The first fault is the one reported: command, number of frames, fields from left to right, then what is stored."""
    c = Client(kv)
    c.ok(CREATE_TABLE, b"t")
    c.ok(UPDATE, b"t", b"k", b"v")
    long_key, long_value, bad_ttl, bad_version = b"k" * 65, b"v" * 1025, b"\1", b"\1\2\3"
    for command in [b"", b"\5\5", b"PING", b"\0\0\0\0"]:
        c.expect(error("BAD REQUEST"), command)
        c.expect(error("BAD REQUEST"), command, b"", b"t")
    known = {command.code for command in COMMANDS}
    for code in sorted(set(range(256)) - known):
        c.expect(error("UNKNOWN COMMAND"), bytes([code]))
        c.expect(error("UNKNOWN COMMAND"), bytes([code]), b"", long_key, long_value)
    for command in COMMANDS:
        code, least = bytes([command.code]), len(command.once)
        right = range(least, least + len(command.optional) + 1)
        for count in range(8):
            if count not in right and not command.repeated:
                for frame in [b"", b"t", long_value]:
                    c.expect(error("BAD REQUEST"), code, *[frame] * count)
        # All fields are wrong from one of them on, and it is that one which is reported.
        names = command.once + command.optional + command.repeated
        for first, name in enumerate(names):
            good = [b"no" if name == "table" else GOOD.get(name, b"k") for name in names[:first]]
            c.expect(error(BAD[name][1]), code, *good, *(BAD[name][0] for name in names[first:]))
        if "table" in names and command.name != "CREATE_TABLE":
            absent = [b"no" if name == "table" else GOOD.get(name, b"k") for name in names]
            c.expect(error("TABLE NOT FOUND"), code, *absent)
    for frames, reason in [
        ([TOUCH, b"t", b"no", be(1)], "KEY NOT FOUND"),
        ([GET, b"a\0b", long_key], "BAD TABLE NAME"),
        ([GET_ENTRY, b"n" * 255, long_key], "BAD TABLE NAME"),
        ([GET_MANY, b"no", b"k", long_key], "KEY TOO LONG"),
        ([UPDATE_MANY, b"no", bad_ttl, long_key, long_value], "BAD TTL"),
        ([UPDATE_MANY, b"no", b"", b"k", long_value, long_key, b"v"], "VALUE TOO LONG"),
        ([UPDATE_MANY, b"no", b"", long_key, long_value], "KEY TOO LONG"),
        ([SCAN, b"no", b"c" * 33, be(0), b"\4", long_key], "BAD CURSOR"),
        ([SCAN, b"no", b"c" * 32, be(0), b"\4", long_key], "BAD REQUEST"),
        ([SCAN, b"no", b"c" * 32, be(1), b"\4", long_key], "BAD REQUEST"),
        ([SCAN, b"no", b"c" * 32, be(10_000), b"\3", long_key], "KEY TOO LONG"),
        ([SCAN, b"t", b"c" * 32, be(10_000), b"\3"], "BAD CURSOR"),
        ([SCAN, b"t", b"c", be(1), b"\0", b""], "BAD CURSOR"),
        ([INCREMENT, b"t", b"k", be(1), be(1)], "NOT A NUMBER"),
        ([GET_AND_TOUCH, b"t", b"no", be(1)], "KEY NOT FOUND"),
        ([FEED_STATE, b"t"], "FEED OFF"),
        ([CHANGES, b"t", be(1), be(1), be(1)], "FEED OFF"),
        ([RESTORE, b"t", b"n", b"v", be(0), be(0)], "OUT OF RANGE"),
        ([RESTORE, b"t", b"n", b"v", be(7), be(0)], "OUT OF RANGE"),
        ([RESTORE, b"t", b"n", b"v", be(2**58), be(0)], "OUT OF RANGE"),
        ([DELETE_MANY, b"t"], "BAD REQUEST"),
        ([DELETE_MANY, b"t", *[b"k"] * 1025], "BAD REQUEST"),
        ([DELETE_MANY, b"t", b"k", long_key], "KEY TOO LONG"),
    ]:
        c.expect(error(reason), *frames)
    c.expect([OK, b"v"], GET, b"t", b"k")
    c.expect([OK, b"t", be(1)], LIST_TABLES)


def chapter_max_tables(kv):
    """With --max-tables 3."""
    c = Client(kv)
    for name in [b"a", b"b", b"c"]:
        c.expect([OK], CREATE_TABLE, name)
    c.expect(error("TOO MANY TABLES"), CREATE_TABLE, b"d")
    c.expect(error("TABLE EXISTS"), CREATE_TABLE, b"a")
    for _ in range(50):
        c.expect([OK], DELETE_TABLE, b"b")
        c.expect([OK], CREATE_TABLE, b"d")
        c.expect(error("TOO MANY TABLES"), CREATE_TABLE, b"b")
        c.expect([OK], DELETE_TABLE, b"d")
        c.expect([OK], CREATE_TABLE, b"b")


def chapter_max_value(kv):
    """With --max-value 2000000."""
    c = Client(kv)
    c.ok(CREATE_TABLE, b"t")
    c.expect([OK], UPDATE, b"t", b"k", b"v" * 2_000_000)
    c.expect([OK, b"v" * 2_000_000], GET, b"t", b"k")
    c.expect(error("VALUE TOO LONG"), UPDATE, b"t", b"k", b"v" * 2_000_001)
    c.expect(error("VALUE TOO LONG"), COMPARE_AND_SWAP, b"t", b"l", be(0), b"v" * 2_000_001)


def chapter_max_key(kv):
    """With --max-key 4096."""
    c = Client(kv)
    c.ok(CREATE_TABLE, b"t")
    keys = [b"k" * size for size in (0, 64, 65, 126, 127, 128, 255, 256, 4096)]
    for key in keys:
        c.expect([OK], UPDATE, b"t", key, b"%d" % len(key))
        status, value, version, ttl = c.ask(GET_ENTRY, b"t", key)
        check((status, value), (OK, b"%d" % len(key)))
        c.ok(COMPARE_AND_SWAP, b"t", key, version, b"7")
        check(c.ok(INCREMENT, b"t", key, be(1))[0], b"8")
        c.expect([OK], TOUCH, b"t", key, be(1000))
        c.expect([OK, b"8"], GET_AND_TOUCH, b"t", key, be(0))
    c.expect([OK, *[frame for _ in keys for frame in (OK, b"8")]], GET_MANY, b"t", *keys)
    c.expect([OK], UPDATE_MANY, b"t", b"", *[frame for key in keys for frame in (key, b"many")])
    rows = [row for page in c.pages(b"t", 2, 1) for row in zip(*[iter(page)] * 2)]
    check(sorted(rows), [(key, b"many") for key in keys])
    check(sorted(key for page in c.pages(b"t", 9, 0, b"k" * 256) for key in page), keys[-2:])
    c.expect([OK, *[OK for _ in keys]], DELETE_MANY, b"t", *keys)
    too_long = b"k" * 4097
    for request in [(GET, b"t", too_long), (UPDATE, b"t", too_long, b""), (GET_MANY, b"t", b"k", too_long),
                    (SCAN, b"t", b"", be(1), b"\0", too_long)]:
        c.expect(error("KEY TOO LONG"), *request)


def chapter_max_memory(kv):
    """With --max-memory of 8 MiB: what does not fit is refused and changes nothing; all else is served."""
    c = Client(kv)
    c.ok(CREATE_TABLE, b"t")
    full = error("OUT OF MEMORY")
    # A deadline takes memory as well. The first element has one from the beginning, so a later TOUCH of it takes none.
    c.expect([OK], UPDATE, b"t", b"k0", b"v" * 1000, be(1000))
    stored = 1
    while c.ask(UPDATE, b"t", b"k%d" % stored, b"v" * 1000) == [OK]:
        stored += 1
        assert stored * 1000 < 8 << 20, "the limit is not held"
    assert stored * 1000 > 4 << 20, f"only {stored} elements of 1000 bytes fit in 8 MiB"
    new = b"k%d" % stored
    c.expect(full, COMPARE_AND_SWAP, b"t", new, be(0), b"v" * 1000)
    c.expect(full, UPDATE_MANY, b"t", b"", *[frame for index in range(20) for frame in (b"m%d" % index, b"v" * 1000)])
    c.expect(error("KEY NOT FOUND"), GET, b"t", new)
    c.expect([OK, ERROR, b""], GET_MANY, b"t", b"m0")
    c.expect([OK, b"v" * 1000], GET, b"t", b"k0")
    c.expect(error("VERSION MISMATCH", be(0)), COMPARE_AND_SWAP, b"t", new, be(5), b"v" * 1000)
    c.expect(error("TABLE NOT FOUND"), UPDATE, b"no", new, b"v" * 1000)
    c.expect([OK], UPDATE, b"t", b"k0", b"w" * 1000)
    c.expect([OK], TOUCH, b"t", b"k0", be(100))
    c.expect([OK, b"t", be(stored)], LIST_TABLES)
    for index in range(10):
        c.expect([OK, b"v" * 1000], DELETE, b"t", b"k%d" % (index + 1))
    deadline = time.monotonic() + PATIENCE_MILLIS / 1000
    while c.ask(UPDATE, b"t", new, b"v" * 1000) != [OK]:
        assert time.monotonic() < deadline, "what was deleted is not given back"
    c.expect([OK, b"v" * 1000], GET, b"t", new)


def chapters():
    found = {**vars(conformance_delivery), **vars(conformance_scans), **globals()}
    return {name.removeprefix("chapter_"): chapter for name, chapter in found.items() if name.startswith("chapter_")}


if __name__ == "__main__":
    chapters()[sys.argv[1]](*sys.argv[2:])
    # Sockets and threads go with the process; the context would wait for them.
    os._exit(0)
