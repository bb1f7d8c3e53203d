"""The lock-step dialect as PROTOCOL.md describes it, spoken with pyzmq. The first argument is the chapter.

Every client announces the identity of the first client, `my-req`.
"""

import os
import sys
import time

import zmq

from conformance_peer import CREATE_TABLE, DELETE, GET, PATIENCE_MILLIS, UPDATE, check, connect, show
from conformance_peer import Client as KvClient

IDENTITY = b"my-req"
LONGEST = b"v" * 1024


class Client:
    """A REQ socket of the first client: it sends one argument, and waits for its reply."""

    def __init__(self, endpoint):
        self.socket = connect(zmq.REQ, endpoint, routing_id=IDENTITY)

    def ask(self, argument):
        self.socket.send(argument)
        frames = self.socket.recv_multipart()
        assert len(frames) == 1, frames
        return frames[0]

    def say(self, expected, *arguments):
        """Sends arguments that are all answered `ok`, but for the last."""
        for argument in arguments[:-1]:
            check(self.ask(argument), b"ok", show(list(arguments)))
        check(self.ask(arguments[-1]), expected, show(list(arguments)))

    def ok(self, *arguments):
        self.say(b"ok", *arguments)

    def fails(self, reason, *arguments):
        self.say(b"error", *arguments)
        self.say(reason, b"6\0")

    def value(self, expected, *arguments):
        self.ok(*arguments)
        self.say(expected, b"6\0")

    def close(self):
        self.socket.close()


def subscribe(endpoint, *topics):
    """A subscriber that the server knows: it has received a change of a table of its own."""
    socket = connect(zmq.SUB, endpoint)
    for topic in topics:
        socket.subscribe(topic)
    return socket


def known(socket, client, marker=b"marker"):
    """Changes a marker until the subscriber receives it, and no other is on its way."""
    socket.subscribe(marker + b"\0")
    client.ok(b"0\0", marker + b"\0")
    received, count = None, 0
    while received is None:
        count += 1
        client.ok(b"2\0", marker + b"\0", b"%d\0" % count, b"\0", b"a\0")
        if socket.poll(20):
            received = socket.recv()
    while received != marker + b"\0000\0%d" % count:
        received = socket.recv()


def chapter_transcript(endpoint, publish):
    c = Client(endpoint)
    subscriber = subscribe(publish, b"birds\0")
    known(subscriber, c)
    for argument, reply in [
        (b"7\0", b"ok"), (b"0\0", b"ok"),
        (b"birds\0", b"ok"), (b"0\0", b"ok"), (b"birds\0", b"error"), (b"6\0", b"TABLE EXISTS"),
        (b"2\0", b"ok"), (b"birds\0", b"ok"), (b"heron\0", b"ok"), (b"grey\0", b"ok"), (b"300\0", b"ok"),
        (b"4\0", b"ok"), (b"birds\0", b"ok"), (b"heron\0", b"ok"), (b"6\0", b"grey"),
        (b"4\0", b"ok"), (b"birds\0", b"ok"), (b"x\0", b"error"), (b"6\0", b"KEY NOT FOUND"),
        (b"3\0", b"ok"), (b"birds\0", b"ok"), (b"heron\0", b"ok"), (b"6\0", b"grey"),
        (b"2\0", b"ok"), (b"no\0", b"ok"), (b"k\0", b"ok"), (b"v\0", b"ok"), (b"a\0", b"error"),
        (b"6\0", b"TABLE NOT FOUND"),
    ]:
        check(c.ask(argument), reply, argument)
    check(subscriber.recv_multipart(), [bytes([*b"birds", 0, 0x30, 0, *b"heron"])])
    check(subscriber.recv_multipart(), [bytes([*b"birds", 0, 0x31, 0, *b"heron"])])


def chapter_interleaved(endpoint, publish):
    one, two = Client(endpoint), Client(endpoint)
    one.ok(b"7\0")
    two.ok(b"7\0")
    one.ok(b"0\0", b"t\0")
    # One argument of each, in turn. Two of them are in the middle of different commands.
    steps = [(b"2\0", b"2\0"), (b"t\0", b"t\0"), (b"one\0", b"two\0"), (b"1\0", b"2\0"), (b"a\0", b"a\0")]
    for of_one, of_two in steps:
        one.ok(of_one)
        two.ok(of_two)
    one.ok(b"4\0")
    two.ok(b"3\0", b"t\0")
    one.ok(b"t\0")
    two.ok(b"two\0")
    one.ok(b"one\0")
    one.say(b"1", b"6\0")
    two.say(b"2", b"6\0")
    one.fails(b"BAD REQUEST", b"6\0")
    two.close()
    one.value(b"1", b"4\0", b"t\0", b"one\0")


def chapter_half(endpoint, publish):
    c = Client(endpoint)
    c.ok(b"0\0", b"t\0", b"2\0", b"t\0", b"k\0", b"before\0", b"a\0")
    c.ok(b"2\0", b"t\0", b"k\0")
    c.close()
    again = Client(endpoint)
    again.ok(b"7\0")
    again.value(b"before", b"4\0", b"t\0", b"k\0")
    # A client that only lost its patience has its old connection still.
    other = Client(endpoint)
    again.ok(b"2\0", b"t\0", b"k\0")
    other.ok(b"7\0")
    other.value(b"before", b"4\0", b"t\0", b"k\0")


def chapter_places(endpoint, publish):
    c = Client(endpoint)
    c.ok(b"0\0", b"6\0", b"0\0", b"7\0")
    c.ok(b"2\0", b"6\0", b"7\0", b"6\0", b"7\0")
    c.value(b"6", b"4\0", b"6\0", b"7\0")
    c.ok(b"2\0", b"7\0", b"6\0", b"7\0", b"6\0")
    c.value(b"7", b"3\0", b"7\0", b"6\0")
    c.fails(b"TABLE EXISTS", b"0\0", b"7\0")
    # Also the codes of commands, and without a NUL.
    c.ok(b"0", b"0", b"2", b"0", b"2", b"4", b"4")
    c.value(b"4", b"4", b"0", b"2")
    c.ok(b"1\0", b"0\0", b"1\0", b"7\0", b"1\0", b"6\0")
    c.fails(b"TABLE NOT FOUND", b"1\0", b"6\0")


def chapter_ttls(endpoint, publish):
    c = Client(endpoint)
    c.ok(b"0\0", b"t\0")
    for ttl in [b"", b"4294967296", b"18446744073709551617", b"9" * 64, b"0" * 65, b"0" * 64 + b"7", b"A", b"aa", b"b",
                b"-1", b"+1", b" 1", b"1 ", b"1.0", b"1\0", b"0x1", b"a0"]:
        c.fails(b"BAD TTL", b"2\0", b"t\0", b"bad\0", b"v\0", ttl + b"\0")
        c.fails(b"KEY NOT FOUND", b"4\0", b"t\0", b"bad\0")
    c.fails(b"BAD TTL", b"2\0", b"t\0", b"bad\0", b"v\0", b"")
    for ttl in [b"a", b"\x01", b"0", b"1", b"300", b"007", b"0" * 63 + b"7", b"4294967295"]:
        for end in [b"\0", b""]:
            c.ok(b"2\0", b"t\0", b"good\0", ttl, ttl + end)
            c.value(ttl, b"4\0", b"t\0", b"good\0")
    # The TTL is wrong, and the table is not there: arguments come first.
    c.fails(b"BAD TTL", b"2\0", b"no\0", b"k\0", b"v\0", b"x\0")
    # It expires, and not before its time. An update without a TTL keeps the deadline, one with a TTL sets it.
    begun = time.monotonic()
    for key in [b"a", b"\x01", b"0", b"00", b"later", b"goes"]:
        c.ok(b"2\0", b"t\0", key, b"v\0", b"0001\0")
    for ttl in [b"a", b"\x01", b"0", b"00"]:
        c.ok(b"2\0", b"t\0", ttl, b"w\0", ttl + b"\0")
    c.ok(b"2\0", b"t\0", b"later\0", b"w\0", b"300\0")
    present = {b"a", b"\x01", b"0", b"00", b"goes"}
    while present:
        assert time.monotonic() - begun < PATIENCE_MILLIS / 1000, f"{present} did not expire"
        for key in sorted(present):
            c.ok(b"4\0", b"t\0")
            answer = c.ask(key)
            if answer == b"error":
                assert time.monotonic() - begun >= 1, f"{key} expired early"
                c.say(b"KEY NOT FOUND", b"6\0")
                present.remove(key)
    c.value(b"w", b"4\0", b"t\0", b"later\0")


def chapter_limits(endpoint, publish):
    c = Client(endpoint)
    table, key = b"t" * 254, b"k" * 64
    c.ok(b"0\0", table + b"\0")
    c.ok(b"2\0", table + b"\0", key + b"\0", LONGEST + b"\0", b"a\0")
    c.value(LONGEST, b"4\0", table + b"\0", key + b"\0")
    c.value(LONGEST, b"4", table, key)
    # The error is reported at the last argument, and nothing has changed.
    for much in [b"", b"k" * 1_000, b"k" * 1_000_000]:
        c.fails(b"KEY TOO LONG", b"2\0", table, key + b"k" + much + b"\0", b"v\0", b"a\0")
        c.fails(b"KEY TOO LONG", b"4\0", table, key + b"k" + much + b"\0")
        c.fails(b"KEY TOO LONG", b"3\0", table, key + b"k" + much)
        c.fails(b"VALUE TOO LONG", b"2\0", table, b"other\0", LONGEST + b"v" + much + b"\0", b"a\0")
        c.fails(b"BAD TABLE NAME", b"2\0", table + b"t" + much + b"\0", b"k\0", b"v\0", b"a\0")
        c.fails(b"BAD TABLE NAME", b"0\0", table + b"t" + much)
        c.fails(b"BAD TTL", b"2\0", table, b"other\0", b"v\0", b"1" * 65 + much + b"\0")
        c.fails(b"UNKNOWN COMMAND", b"4" * 65 + much)
    c.fails(b"KEY NOT FOUND", b"4\0", table, b"other\0")
    # The first fault is reported.
    c.fails(b"KEY TOO LONG", b"2\0", table, key + b"k", LONGEST + b"v", b"x")
    # Empty and with zeros inside.
    c.ok(b"2\0", table, b"\0", b"\0", b"a\0")
    c.value(b"", b"4\0", table, b"")
    c.ok(b"2\0", table, b"a\0b\0", b"c\0\0", b"a\0")
    c.value(b"c\0", b"4\0", table, b"a\0b\0")
    c.fails(b"BAD TABLE NAME", b"0\0", b"t\0\0")
    c.fails(b"BAD TABLE NAME", b"0\0", b"\0")
    c.fails(b"BAD TABLE NAME", b"0\0", b"")
    c.value(LONGEST, b"3\0", table, key)


def chapter_max_value(endpoint, publish):
    c = Client(endpoint)
    longest = os.urandom(2_000_000 - 1) + b"\1"
    c.ok(b"0\0", b"t\0")
    c.ok(b"2\0", b"t\0", b"k\0", longest + b"\0", b"a\0")
    c.value(longest, b"4\0", b"t\0", b"k\0")
    c.fails(b"VALUE TOO LONG", b"2\0", b"t\0", b"k\0", longest + b"v\0", b"a\0")
    c.value(longest, b"3\0", b"t\0", b"k\0")


def chapter_pending(endpoint, publish):
    c = Client(endpoint)
    c.fails(b"BAD REQUEST", b"6\0")
    c.ok(b"0\0", b"t\0", b"2\0", b"t\0", b"k\0", b"v\0", b"a\0")
    c.fails(b"BAD REQUEST", b"6\0")
    get = [b"4\0", b"t\0", b"k\0"]
    c.value(b"v", *get)
    c.fails(b"BAD REQUEST", b"6\0")
    c.ok(*get)
    # A second hello forgets the value.
    c.ok(b"7\0", b"7\0")
    c.fails(b"BAD REQUEST", b"6\0")
    # Another command drops a value or a reason, and its own is there.
    c.ok(*get)
    c.fails(b"KEY NOT FOUND", b"4\0", b"t\0", b"none\0")
    c.say(b"error", b"4\0", b"t\0", b"none\0")
    c.value(b"v", *get)
    c.ok(*get)
    c.fails(b"UNKNOWN COMMAND", b"5\0")
    c.say(b"error", b"6\0")
    c.say(b"error", b"5\0")
    c.say(b"UNKNOWN COMMAND", b"6\0")
    # A hello in the place of an argument is an argument.
    c.ok(b"2\0", b"t\0", b"7\0", b"7\0", b"7\0")
    c.value(b"7", b"4\0", b"t\0", b"7\0")


def chapter_reasons(endpoint, publish):
    c = Client(endpoint)
    c.ok(b"0\0", b"t\0")
    c.fails(b"TABLE EXISTS", b"0\0", b"t\0")
    c.fails(b"TABLE EXISTS", b"0\0", b"t")
    c.fails(b"BAD TABLE NAME", b"1\0", b"\0")
    for arguments in [(b"1", b"no"), (b"2", b"no", b"k", b"v", b"1"), (b"3", b"no", b"k"), (b"4", b"no", b"k")]:
        c.fails(b"TABLE NOT FOUND", *arguments)
    for arguments in [(b"3", b"t", b"k"), (b"4", b"t", b"k")]:
        c.fails(b"KEY NOT FOUND", *arguments)
    for argument in [b"", b"\0", b"5", b"8", b"9", b"10", b"06", b"a", b"\1", b"7\0\0", b"hello\0"]:
        c.fails(b"UNKNOWN COMMAND", argument)
    c.ok(b"0", b"u")
    c.fails(b"TOO MANY TABLES", b"0", b"v")
    c.ok(b"1", b"t", b"1", b"u")


def chapter_shapes(endpoint, publish):
    socket = connect(zmq.DEALER, endpoint, routing_id=IDENTITY)

    def ask(*frames):
        socket.send_multipart(frames)
        return socket.recv_multipart()

    check(ask(b"", b"7\0"), [b"", b"ok"])
    # Outside of a command.
    for frames, envelope in [
        ([b"7\0"], []), ([b"7"], []), ([b""], [b""]), ([b"", b"7\0", b"7\0"], [b""]), ([b"", b"", b"7"], [b""]),
        ([b"id", b"", b"7\0"], [b"id", b""]), ([b"7", b"7"], []), ([b""] + [b"x"] * 200, [b""]), ([b"x"] * 200, []),
    ]:
        check(ask(*frames), envelope + [b"error"], show(frames))
        check(ask(b"", b"6\0"), [b"", b"BAD REQUEST"])
    # It is an argument in the middle of a command, and a wrong one.
    check(ask(b"", b"0\0"), [b"", b"ok"])
    check(ask(b"t\0"), [b"error"])
    check(ask(b"", b"6\0"), [b"", b"BAD REQUEST"])
    check(ask(b"", b"2\0"), [b"", b"ok"])
    check(ask(b"t\0"), [b"ok"])
    check(ask(b"hop", b"", b"k", b"k"), [b"hop", b"", b"ok"])
    check(ask(b"", b"v\0"), [b"", b"ok"])
    check(ask(b"", b"a\0"), [b"", b"error"])
    check(ask(b"", b"6\0"), [b"", b"BAD REQUEST"])
    check(ask(b"", b"0\0"), [b"", b"ok"])
    check(ask(b"", b"t\0"), [b"", b"ok"])


def chapter_pipelined(endpoint, publish):
    socket = connect(zmq.DEALER, endpoint, routing_id=IDENTITY, sndhwm=0, rcvhwm=0)
    expected = []

    def say(*pairs):
        for argument, reply in pairs:
            socket.send_multipart([b"", argument])
            expected.append(reply)

    say((b"0\0", b"ok"), (b"t\0", b"ok"))
    for number in range(5_000):
        key, value = b"k%d\0" % (number % 7), b"%d" % number
        say((b"2\0", b"ok"), (b"t\0", b"ok"), (key, b"ok"), (value + b"\0", b"ok"), (b"a\0", b"ok"))
        say((b"4\0", b"ok"), (b"t\0", b"ok"), (key, b"ok"), (b"6\0", value))
        if number % 3 == 0:
            say((b"3\0", b"ok"), (b"t\0", b"ok"), (key, b"ok"), (b"6\0", value))
            say((b"4\0", b"ok"), (b"t\0", b"ok"), (key, b"error"), (b"6\0", b"KEY NOT FOUND"))
    for number, reply in enumerate(expected):
        check(socket.recv_multipart(), [b"", reply], number)


def chapter_many(endpoint, publish):
    clients = [Client(endpoint) for _ in range(300)]
    clients[0].ok(b"0\0", b"t\0")
    # All are at the same argument, and none waits for another.
    for arguments in [(b"2\0",), (b"t\0",), None, (b"value\0",), (b"a\0",)]:
        for number, client in enumerate(clients):
            client.socket.send(arguments[0] if arguments else b"%d\0" % number)
        for client in clients:
            check(client.socket.recv(), b"ok")
    for number, client in enumerate(reversed(clients)):
        client.value(b"value", b"4\0", b"t\0", b"%d\0" % number)
    for number, client in enumerate(clients):
        client.ok(b"3\0", b"t\0")
        if number % 2:
            client.close()
    for number, client in enumerate(clients):
        if not number % 2:
            client.ok(b"%d\0" % number)
            client.say(b"value", b"6\0")


def chapter_nul(endpoint, publish):
    c = Client(endpoint)
    for argument, reply in [
        (b"7\0", b"ok\0"), (b"0\0", b"ok\0"), (b"t\0", b"ok\0"), (b"2\0", b"ok\0"), (b"t\0", b"ok\0"), (b"k\0", b"ok\0"),
        (b"value\0", b"ok\0"), (b"a\0", b"ok\0"), (b"4\0", b"ok\0"), (b"t\0", b"ok\0"), (b"k\0", b"ok\0"),
        (b"6\0", b"value\0"), (b"6\0", b"error\0"), (b"6\0", b"BAD REQUEST\0"), (b"2\0", b"ok\0"), (b"t\0", b"ok\0"),
        (b"k\0", b"ok\0"), (b"\0", b"ok\0"), (b"a\0", b"ok\0"), (b"4\0", b"ok\0"), (b"t\0", b"ok\0"), (b"k\0", b"ok\0"),
        (b"6\0", b"\0"), (b"what\0", b"error\0"), (b"6\0", b"UNKNOWN COMMAND\0"),
    ]:
        check(c.ask(argument), reply, argument)


def chapter_notifications(endpoint, publish):
    c = Client(endpoint)
    all_of_t, one_key, deleted, other = (
        subscribe(publish, topic) for topic in [b"t\0", b"t\0000\0key", b"t\0001\0", "vögel".encode() + b"\0"])
    for number, socket in enumerate([all_of_t, one_key, deleted, other]):
        known(socket, c, b"marker%d" % number)
    for table in [b"t\0", b"t2\0", b"\xff\xfe\0", "vögel\0".encode()]:
        c.ok(b"0\0", table)
    c.ok(b"2\0", b"t\0", b"key1\0", b"v\0", b"a\0")
    c.ok(b"2\0", b"t2\0", b"key1\0", b"v\0", b"a\0")
    # No table that is not UTF-8, and no key with a NUL.
    c.ok(b"2\0", b"\xff\xfe\0", b"key\0", b"v\0", b"a\0")
    c.ok(b"2\0", b"t\0", b"key\0with\0", b"v\0", b"a\0")
    c.ok(b"3\0", b"t\0", b"key\0with\0")
    c.ok(b"2\0", "vögel\0".encode(), b"\xff\xfe", b"v\0", b"a\0")
    c.ok(b"2\0", b"t\0", b"\0", b"v\0", b"1\0")
    c.ok(b"2\0", b"t\0", b"key2\0", b"v\0", b"a\0")
    c.ok(b"3\0", b"t\0", b"key1\0")
    # What was read or failed is no change. A deadline and the end of the table delete.
    c.value(b"v", b"4\0", b"t\0", b"key2\0")
    c.fails(b"KEY NOT FOUND", b"3\0", b"t\0", b"key1\0")
    before = [b"t\0000\0key1", b"t\0000\0", b"t\0000\0key2", b"t\0001\0key1", b"t\0001\0"]
    check([all_of_t.recv_multipart() for _ in before], [[frame] for frame in before])
    c.ok(b"1\0", b"t\0")
    check(all_of_t.recv_multipart(), [b"t\0001\0key2"])
    check([one_key.recv_multipart() for _ in range(2)], [[b"t\0000\0key1"], [b"t\0000\0key2"]])
    check([deleted.recv_multipart() for _ in range(3)], [[b"t\0001\0key1"], [b"t\0001\0"], [b"t\0001\0key2"]])
    check(other.recv_multipart(), ["vögel".encode() + b"\0000\0\xff\xfe"])
    # Nothing else came.
    for number, socket in enumerate([all_of_t, one_key, deleted, other]):
        marker = b"marker%d\0" % number
        c.ok(b"2\0", marker, b"last\0", b"\0", b"a\0")
        check(socket.recv(), marker + b"0\0last")


def chapter_beside_kv(endpoint, publish, kv, kv_publish):
    c, other = Client(endpoint), KvClient(kv)
    ours, theirs = subscribe(publish, b"t\0"), connect(zmq.SUB, kv_publish)
    theirs.subscribe(b"t")
    known(ours, c)
    while b'"subscriptions":1,' not in other.ok(b"\x0d")[0].split(b'"feed"')[0]:
        pass
    c.ok(b"0\0", b"t\0")
    other.expect([b"\0", b"TABLE EXISTS"], CREATE_TABLE, b"t")
    c.ok(b"2\0", b"t\0", b"k\0", b"lock step\0", b"a\0")
    other.expect([b"\1", b"lock step"], GET, b"t", b"k")
    other.ok(UPDATE, b"t\0", b"k", b"at once\0")
    c.value(b"at once\0", b"4\0", b"t\0", b"k\0")
    other.ok(DELETE, b"t", b"k")
    c.fails(b"KEY NOT FOUND", b"3\0", b"t\0", b"k\0")
    # The table is named as the first client has created it, its NUL included.
    for kind in [b"\0", b"\0", b"\1"]:
        check(theirs.recv_multipart(), [b"t\0", kind, b"k"])
        check(ours.recv_multipart(), [b"t\0" + (b"1" if kind == b"\1" else b"0") + b"\0k"])
    # A table without a NUL is the same to the first client.
    other.ok(CREATE_TABLE, b"u")
    ours.subscribe(b"u\0")
    known(ours, c, b"again")
    other.ok(UPDATE, b"u", b"k", b"v")
    check(ours.recv_multipart(), [b"u\0000\0k"])


def chapter_max_memory(endpoint, publish):
    c = Client(endpoint)
    c.ok(b"0\0", b"t\0")
    stored = 0
    while True:
        c.ok(b"2\0", b"t\0", b"k%d\0" % stored, LONGEST)
        if c.ask(b"a\0") == b"error":
            break
        stored += 1
        assert stored < 8 << 10, "the limit is 8 MiB"
    c.say(b"OUT OF MEMORY", b"6\0")
    assert stored > 100, stored
    c.value(LONGEST, b"3\0", b"t\0", b"k0\0")


if __name__ == "__main__":
    globals()["chapter_" + sys.argv[1]](*sys.argv[2:])
    # Sockets go with the process; the context would wait for them.
    os._exit(0)
