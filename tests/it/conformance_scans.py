"""Chapters of conformance.py: scans, counters, and requests that save a round trip."""

import os
import time

from conformance_peer import *


def chapter_counters(kv):
    """INCREMENT: numbers in their one spelling, at their edges, with and without a deadline."""
    c = Client(kv)
    c.ok(CREATE_TABLE, b"t")

    def counts(total, delta, *ttl):
        value, version = c.ok(INCREMENT, b"t", b"k", signed(delta), *ttl)
        check(value, b"%d" % total)
        check(c.entry(b"t", b"k")[:2], (value, number(version)))
        return c.entry(b"t", b"k")[2]

    check(counts(-3, -3), FOREVER)
    check(counts(7, 10, be(60)), FOREVER, "an element that exists keeps its deadline")
    c.ok(DELETE, b"t", b"k")
    assert 40_000 < counts(0, 0, be(60)) <= 60_001
    assert 40_000 < counts(1, 1) <= 60_001, "the deadline of the first one stays"
    assert 40_000 < counts(2, 1, be(1000)) <= 60_001, "the deadline of the first one stays"
    for value in [b"0", b"-1", b"%d" % (2**63 - 1), b"%d" % -(2**63)]:
        c.ok(UPDATE, b"t", b"k", value)
        counts(int(value), 0)
    for value in [b"", b"-", b"-0", b"+1", b"01", b" 1", b"1\n", b"1.0", b"0x1", b"%d" % 2**63, b"%d" % (-(2**63) - 1)]:
        c.ok(UPDATE, b"t", b"k", value)
        c.expect(error("NOT A NUMBER"), INCREMENT, b"t", b"k", signed(1))
        c.expect([OK, value], GET, b"t", b"k")
    for value, delta in [(2**63 - 1, 1), (-(2**63), -1), (-1, -(2**63)), (1, 2**63 - 1)]:
        c.ok(UPDATE, b"t", b"k", b"%d" % value)
        c.expect(error("OUT OF RANGE"), INCREMENT, b"t", b"k", signed(delta))
        c.expect([OK, b"%d" % value], GET, b"t", b"k")
    start = time.monotonic()
    c.ok(INCREMENT, b"t", b"window", signed(1), be(1))
    while c.ok(INCREMENT, b"t", b"window", signed(1), be(1))[0] != b"1":
        assert time.monotonic() - start < 20.0, "the window has not ended"
    assert time.monotonic() - start >= 1.0, "the window has ended early"


def chapter_touched(kv):
    """GET_AND_TOUCH and DELETE_MANY."""
    c = Client(kv)
    c.ok(CREATE_TABLE, b"t")
    c.ok(UPDATE, b"t", b"k", b"v")
    before = c.entry(b"t", b"k")[1]
    c.expect([OK, b"v"], GET_AND_TOUCH, b"t", b"k", be(60))
    value, version, left = c.entry(b"t", b"k")
    assert value == b"v" and version > before and 40_000 < left <= 60_001, (value, before, version, left)
    c.expect([OK, b"v"], GET_AND_TOUCH, b"t", b"k", be(0))
    check(c.entry(b"t", b"k")[2], FOREVER)
    keys = [b"k%d" % index for index in range(1024)]
    c.ok(UPDATE_MANY, b"t", b"", *[frame for key in keys for frame in (key, b"v")])
    c.expect([OK, *[OK, ERROR] * 512], DELETE_MANY, b"t", *[frame for key in keys[:512] for frame in (key, b"no")])
    c.expect([OK, OK, ERROR], DELETE_MANY, b"t", b"k", b"k")
    c.expect([OK, *[ERROR] * 512, *[OK] * 512], DELETE_MANY, b"t", *keys)
    c.expect([OK, b"t", be(0)], LIST_TABLES)


def chapter_scans(kv):
    """SCAN: its fields, its pages, its cursors, and who may use them."""
    c = Client(kv)
    c.ok(CREATE_TABLE, b"t")
    check(list(c.pages(b"t", 1, 0)), [[]])
    keys = {b"%05d" % index for index in range(3000)}
    for key in sorted(keys):
        c.ok(UPDATE, b"t", key, b"v" + key, *([be(1000)] if key.endswith(b"7") else []))
    for count in [1, 7, 1000, 10_000]:
        pages = list(c.pages(b"t", count, 0))
        check(sorted(key for page in pages for key in page), sorted(keys), count)
        assert all(len(page) <= count for page in pages) and len(pages) >= 3000 / count, len(pages)
    found = [key for page in c.pages(b"t", 100, 0, b"0012") for key in page]
    check(sorted(found), sorted(key for key in keys if key.startswith(b"0012")))
    rows = [frame for page in c.pages(b"t", 1000, 1) for frame in page]
    check(dict(zip(rows[0::2], rows[1::2])), {key: b"v" + key for key in keys})
    rows = [frame for page in c.pages(b"t", 1000, 2) for frame in page]
    check(len(rows), 4 * 3000)
    for key, value, version, left in zip(*(iter(rows),) * 4):
        entry = c.entry(b"t", key) if key.startswith(b"000") else (value, number(version), number(left))
        check((value, number(version)), entry[:2])
        assert (900_000 < number(left) <= 1_000_001) if key.endswith(b"7") else number(left) == FOREVER
    rows = [frame for page in c.pages(b"t", 1000, 3) for frame in page]
    for key, value, version, deadline, mark in zip(*(iter(rows),) * 5):
        check((value, mark in (b"\0", b"\1")), (b"v" + key, True))
        soon = number(deadline) / 1000 - time.time()
        assert (900 < soon < 1001) if key.endswith(b"7") else number(deadline) == 0, (key, soon)
    # A cursor is good for the life of its table, however often it is used, and for no other.
    cursor = c.ok(SCAN, b"t", b"", be(10), b"\0")[0]
    once = c.ok(SCAN, b"t", cursor, be(10), b"\0")
    check(c.ok(SCAN, b"t\0", cursor, be(10), b"\0"), once)
    c.ok(CREATE_TABLE, b"u")
    bad = error("BAD CURSOR")
    c.expect(bad, SCAN, b"u", cursor, be(10), b"\0")
    for length in range(1, 41):
        c.expect(bad, SCAN, b"t", os.urandom(length), be(10), b"\0")
        if length != len(cursor):
            c.expect(bad, SCAN, b"t", (cursor * 2)[:length], be(10), b"\0")
    for place in range(len(cursor)):
        forged = cursor[:place] + bytes([cursor[place] ^ 0x40]) + cursor[place + 1:]
        c.expect(bad, SCAN, b"t", forged, be(10), b"\0")
    for field in range(0, len(cursor), 8):
        for extreme in [be(0), be(1), be(2**63), be(2**64 - 1)]:
            forged = cursor[:field] + extreme + cursor[field + 8:]
            # The first table of a server has the generation 1.
            if forged != cursor:
                c.expect(bad, SCAN, b"t", forged, be(10), b"\0")
    c.ok(DELETE_TABLE, b"t")
    c.expect(error("TABLE NOT FOUND"), SCAN, b"t", cursor, be(10), b"\0")
    c.ok(CREATE_TABLE, b"t")
    c.expect(bad, SCAN, b"t", cursor, be(10), b"\0")


def chapter_large_pages(kv):
    """With --max-value 2000000: a page ends at about 1 MiB and has one row at least. Pages of others are not in its way."""
    c = Client(kv)
    c.ok(CREATE_TABLE, b"t")
    values = {b"%d" % index: b"v" * size for index, size in enumerate([2_000_000] * 3 + [400_000] * 10)}
    for key, value in values.items():
        c.ok(UPDATE, b"t", key, value)
    found = {}
    for page in c.pages(b"t", 10_000, 1):
        assert page and (len(page) == 2 or sum(map(len, page)) <= 2**20), [len(frame) for frame in page]
        found.update(zip(page[0::2], page[1::2]))
    assert found == values
    check(sorted(key for page in c.pages(b"t", 10_000, 0) for key in page), sorted(values))
    # Many pages that are asked for before the first is read, between other requests, come in order.
    socket = connect(zmq.DEALER, kv, rcvhwm=10_000)
    for _ in range(40):
        socket.send_multipart([GET, b"t", b"0"])
        socket.send_multipart([SCAN, b"t", b"", be(10), b"\1"])
        socket.send_multipart([PING])
    for _ in range(40):
        check(len(socket.recv_multipart()[1]), 2_000_000)
        page = socket.recv_multipart()
        assert page[0] == OK and len(page) >= 4, len(page)
        check(socket.recv_multipart(), [OK])
