"""The feed as FEED.md and PROTOCOL.md describe it, followed with pyzmq. The first argument is the chapter."""

import json
import struct
import sys
import threading
import time

from conformance_peer import *

# The causes that leave a value have bit 7.
LIVE = 0x80
SET, TOUCHED, SWAPPED, INCREMENTED = LIVE | 1, LIVE | 2, LIVE | 6, LIVE | 7
DELETED_BY_CLIENT, EXPIRED, WITH_TABLE = 3, 4, 5
CAUSES = {SET, TOUCHED, SWAPPED, INCREMENTED, DELETED_BY_CLIENT, EXPIRED, WITH_TABLE}
CHANGES_OF, BOOKMARK, DROPPED = 1, 2, 3
MASK = 2**64 - 1
# The bytes of the default secret of XXH3 that keys of 4 to 8 bytes need.
SECRET = bytes.fromhex("7c01812cf721ad1cded46de9839097db")


def xxh3(key, seed):
    """XXH3-64 of 4 to 8 bytes, from its specification."""
    assert 4 <= len(key) <= 8, key
    low = seed & 0xFFFFFFFF
    seed ^= int.from_bytes(low.to_bytes(4, "little"), "big") << 32
    first, last = struct.unpack("<I", key[:4])[0], struct.unpack("<I", key[-4:])[0]
    flip = ((struct.unpack("<Q", SECRET[:8])[0] ^ struct.unpack("<Q", SECRET[8:])[0]) - seed) & MASK
    hash = (last + (first << 32) & MASK) ^ flip
    rotated = lambda by: (hash << by | hash >> 64 - by) & MASK
    hash ^= rotated(49) ^ rotated(24)
    hash = hash * 0x9FB21C651E98DF25 & MASK
    hash ^= (hash >> 35) + len(key)
    hash = hash * 0x9FB21C651E98DF25 & MASK
    return hash ^ hash >> 28


def digest(copy):
    return sum(xxh3(key, version) for key, (version, _, _) in copy.items()) & MASK


def topic(table):
    return bytes([len(table)]) + table


def decode(payload):
    """Type, (epoch, incarnation, sequence), and the changes or the numbers of a bookmark."""
    format, kind, *position = struct.unpack(">BBQQQ", payload[:26])
    check(format, 2)
    rest = payload[26:]
    if kind == BOOKMARK:
        return kind, position, struct.unpack(">QQQ", rest)
    if kind == DROPPED:
        check(rest, b"")
        return kind, position, None
    check(kind, CHANGES_OF)
    (count,) = struct.unpack(">H", rest[:2])
    assert 1 <= count <= 64, count
    rest, changes = rest[2:], []
    for _ in range(count):
        cause, version, deadline, length = struct.unpack(">BQQH", rest[:19])
        key, rest = rest[19:19 + length], rest[19 + length:]
        (length,) = struct.unpack(">I", rest[:4])
        value, rest = rest[4:4 + length], rest[4 + length:]
        assert cause in CAUSES and version > 0, (cause, version)
        if not cause & LIVE:
            check((deadline, value), (0, b""), "a deletion has no value")
        changes.append((cause, version, deadline, key, value))
    check(rest, b"")
    return kind, position, changes


class Follower:
    """A subscriber of one table that has missed nothing of the lives that it has seen from the beginning."""

    def __init__(self, feed, table):
        self.table, self.socket = table, connect(zmq.SUB, feed, rcvhwm=0)
        self.socket.subscribe(topic(table))
        self.copy, self.life, self.next, self.versions = {}, None, None, {}
        self.causes, self.bookmarks, self.dropped, self.messages = set(), 0, set(), []
        # The first message is a bookmark for this subscriber alone.
        kind, self.life, self.next = self.receive_one()
        check(kind, BOOKMARK)

    def receive_one(self):
        name, payload = self.socket.recv_multipart()
        check(name, topic(self.table))
        kind, (epoch, incarnation, sequence), content = decode(payload)
        return (kind, (epoch, incarnation), sequence) if self.life is None else self.merge(
            kind, (epoch, incarnation), sequence, content, payload)

    def merge(self, kind, life, sequence, content, payload):
        check(life[0], self.life[0], "the epoch")
        assert life not in self.dropped or life[1] == 0, "a message after DROPPED"
        if kind == DROPPED:
            self.dropped.add(life)
            if life == self.life:
                check(self.copy, {}, "a life that is dropped has no element")
                check(sequence, self.next)
            return kind
        if life != self.life:
            if kind == BOOKMARK and life[1] == 0:
                return kind
            if life[1] < self.life[1]:
                return kind
            self.life, self.next, self.copy = life, 1, {}
        check(sequence, self.next, "no gap")
        if kind == BOOKMARK:
            self.bookmarks += 1
            check(content, (len(self.copy), digest(self.copy), sequence), "the bookmark")
            return kind
        self.messages.append(payload)
        for cause, version, deadline, key, value in content:
            assert version > self.versions.get(key, 0), (key, version, self.versions[key])
            self.versions[key] = version
            self.causes.add(cause)
            self.next += 1
            if cause & LIVE:
                self.copy[key] = (version, deadline, value)
            else:
                self.copy.pop(key, None)
        return kind

    def follow_until(self, client):
        """Follows up to the state that the server has now. Returns that state."""
        state = [number(frame) for frame in client.ok(FEED_STATE, self.table)]
        start = time.monotonic()
        while (self.life, self.next) < ((state[0], state[1]), state[2]):
            self.receive_one()
            assert time.monotonic() - start < 30
        return state


def scanned(client, table):
    """The table by a scan for mirrors, and the marks of its rows."""
    copy, marks = {}, set()
    for rows in client.pages(table, 1_000, 3):
        for key, value, version, deadline, mark in zip(*[iter(rows)] * 5):
            marks.add(mark[0])
            if mark[0] != 2:
                copy[key] = (number(version), number(deadline), value)
    return copy, marks


def wait_until_published(client, changes):
    """Waits until the feed is through with so many changes. Returns its part of STATS."""
    start = time.monotonic()
    while True:
        feed = json.loads(client.ok(STATS)[0])["feed"]
        if feed["changes"] + feed["conflated"] == changes:
            return feed
        assert time.monotonic() - start < 30, feed


def write(kv, seed, count, table=b"users"):
    """Writes, touches, deletes and counts keys that others write too."""
    client = Client(kv)
    for index in range(count):
        key, kind = b"key%d" % ((index * 7 + seed * 3) % 50), (index * 31 + seed) % 13
        if kind < 5:
            client.ask(UPDATE, table, key, b"value %d of %d" % (index, seed))
        elif kind == 5:
            client.ask(UPDATE, table, key, b"short", be(1))
        elif kind == 6:
            client.ask(TOUCH, table, key, be(index % 2 * 1000))
        elif kind == 7:
            client.ask(UPDATE_MANY, table, b"", *[frame for n in range(8) for frame in (b"key%d" % n, b"many")])
        elif kind == 8:
            client.ask(GET_AND_TOUCH, table, key, be(1000))
        elif kind == 9:
            client.ask(INCREMENT, table, b"key%d" % (100 + index % 3), be(1))
        elif kind == 10:
            client.ask(COMPARE_AND_SWAP, table, b"key%d" % (200 + index), be(0), b"swapped")
        else:
            client.ask(DELETE, table, key)


def chapter_copy(kv, feed):
    """A copy is exact after concurrent writers, with expiries, and agrees with SCAN, FEED_STATE and each bookmark."""
    client = Client(kv)
    client.ok(CREATE_TABLE, b"users\0")
    follower = Follower(feed, b"users")
    writers = [threading.Thread(target=write, args=(kv, seed, 600)) for seed in range(4)]
    [writer.start() for writer in writers]
    while any(writer.is_alive() for writer in writers):
        follower.follow_until(client)
    late = Follower(feed, b"users")
    start = time.monotonic()
    while True:
        state = follower.follow_until(client)
        copy, marks = scanned(client, b"users")
        if copy == follower.copy and marks <= {0} and state[4:] == [len(copy), digest(copy)]:
            break
        assert time.monotonic() - start < 30, (copy, follower.copy, marks, state)
    # The elements with a second to live go, each by a change.
    while any(0 < deadline < time.time() * 1000 + 2_000 for _, deadline, _ in follower.copy.values()):
        follower.follow_until(client)
        assert time.monotonic() - start < 30
    assert CAUSES - {WITH_TABLE} <= follower.causes, follower.causes
    assert follower.bookmarks >= 2, follower.bookmarks
    # One that joined late begins at its own place, and the history has the rest.
    assert late.next > 1 and late.life == follower.life
    epoch, incarnation = follower.life
    sequence, replayed = 1, []
    while sequence < follower.next:
        payloads = client.ok(CHANGES, b"users", be(epoch), be(incarnation), be(sequence))
        replayed += payloads
        kind, position, changes = decode(payloads[-1])
        sequence = position[2] + len(changes)
    check(replayed[:len(follower.messages)], follower.messages, "the replay is what was published")
    beyond = client.ask(CHANGES, b"users", be(epoch), be(incarnation), be(2**40))
    check(beyond, error("COMPACTED", be(1)))
    for life in [(epoch + 1, incarnation), (epoch, incarnation + 1)]:
        check(client.ask(CHANGES, b"users", be(life[0]), be(life[1]), be(1)), error("COMPACTED", be(1)))


def chapter_lives(kv, feed):
    """Tables that come and go: no table, a life, DROPPED, and the next life."""
    client = Client(kv)
    follower = Follower(feed, b"t123")
    check((follower.life[1], follower.next), (0, 1), "there is no such table")
    check(client.ask(FEED_STATE, b"t123"), error("TABLE NOT FOUND"))
    for life in range(20):
        client.ok(CREATE_TABLE, b"t123")
        for index in range(life * 10):
            client.ok(UPDATE, b"t123", b"key%d" % index, b"%d" % life)
        state = [number(frame) for frame in client.ok(FEED_STATE, b"t123")]
        client.ok(DELETE_TABLE, b"t123")
    client.ok(CREATE_TABLE, b"t123")
    client.ok(UPDATE, b"t123", b"last", b"value")
    start = time.monotonic()
    while len(follower.dropped) < 20 or b"last" not in follower.copy:
        follower.receive_one()
        assert time.monotonic() - start < 30, (follower.dropped, follower.life)
    follower.follow_until(client)
    check(list(follower.copy), [b"last"])
    assert follower.life[1] > state[1]


def chapter_compacted(kv, feed):
    """A history of few bytes: what is evicted is COMPACTED, what is kept is replayed, and a busy table evicts others."""
    client = Client(kv)
    for table in (b"busy", b"calm"):
        client.ok(CREATE_TABLE, table)
    client.ok(UPDATE, b"calm", b"key1", b"value")
    follower = Follower(feed, b"busy")
    for index in range(3_000):
        client.ok(UPDATE, b"busy", b"key%d" % (index % 100), b"v" * 100)
    feed_stats = wait_until_published(client, 3_001)
    epoch, incarnation, following, oldest, elements, _ = follower.follow_until(client)
    assert 1 < oldest < following and elements == 100, (oldest, following, elements)
    ask = lambda sequence: client.ask(CHANGES, b"busy", be(epoch), be(incarnation), be(sequence))
    check(ask(1), error("COMPACTED", be(oldest)))
    check(ask(oldest - 1), error("COMPACTED", be(oldest)))
    check(ask(following), [OK], "there is nothing yet")
    status, *payloads = ask(oldest)
    check(status, OK)
    check(decode(payloads[0])[1], [epoch, incarnation, oldest])
    calm = [number(frame) for frame in client.ok(FEED_STATE, b"calm")]
    check((calm[2], calm[3], calm[4]), (2, 2, 1), "its message is evicted, its state is not")
    assert feed_stats["history_bytes"] <= 65_536, feed_stats
    check(feed_stats["subscribers"], 1)


def chapter_bookmarks(kv, feed):
    """The empty subscription receives all tables, a partial one those it fits, and bookmarks come when all is idle."""
    client = Client(kv)
    everything = connect(zmq.SUB, feed)
    everything.subscribe(b"")
    partial = connect(zmq.SUB, feed)
    partial.subscribe(b"\5us")
    client.ok(CREATE_TABLE, b"users")
    client.ok(CREATE_TABLE, b"birds")
    received = set()
    index = 0
    while len(received) < 6:
        index += 1
        for table in (b"users", b"birds"):
            client.ok(UPDATE, table, b"key1", b"%d" % index)
        for name, socket in (("all", everything), ("partial", partial)):
            while socket.poll(5):
                table, payload = socket.recv_multipart()
                received.add((name, table, payload[1]))
        assert index < 5_000, received
    both = {("all", topic(table), kind) for table in (b"users", b"birds") for kind in (1, 2)}
    check(received, both | {("partial", topic(b"users"), 1), ("partial", topic(b"users"), 2)})
    # A whole topic without change gets a bookmark after ten seconds. The other two do not.
    wait_until_published(client, 2 * index)
    whole = connect(zmq.SUB, feed)
    whole.subscribe(topic(b"users"))
    for socket in (everything, partial):
        while socket.poll(1_100):
            socket.recv_multipart()
    bookmarks = [decode(whole.recv_multipart()[1]) for _ in range(3)]
    check([kind for kind, *_ in bookmarks], [BOOKMARK] * 3)
    assert bookmarks[0] == bookmarks[2] and bookmarks[0][2][0] == 1, bookmarks
    check([socket.poll(0) for socket in (everything, partial)], [0, 0])


chapters = {name.removeprefix("chapter_"): chapter for name, chapter in globals().items() if name.startswith("chapter_")}
assert xxh3(b"abcd", 0) == 0x6497A96F53A89890, hex(xxh3(b"abcd", 0))
chapters[sys.argv[1]](*sys.argv[2:])
