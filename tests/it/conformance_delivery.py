"""The kv protocol as pyzmq sees it: how messages travel. Envelopes, order, notifications, nonsense."""

import json
import random
import threading
import time

import zmq

from conformance_peer import *


def chapter_envelopes(kv):
    """Every form of envelope comes back byte for byte."""
    req = Client(kv)
    req.ok(CREATE_TABLE, b"t")
    req.ok(UPDATE, b"t", b"k", b"v")
    dealer = connect(zmq.DEALER, kv)

    def exchange(sent, expected):
        dealer.send_multipart(sent)
        check(dealer.recv_multipart(), expected, show(sent))

    get, found, bad = [GET, b"t", b"k"], [OK, b"v"], error("BAD REQUEST")
    cookies = [b"cookie", b"\0\1\2", b"x", b"c" * 300]
    envelopes = [[b""], [b"cookie", b""], [b"c", b""], [*cookies, b""], [b"id"] * 63 + [b""]]
    for envelope in envelopes:
        exchange([*envelope, *get], [*envelope, *found])
        exchange([*envelope, PING], [*envelope, OK])
        exchange([*envelope, b"\xff"], [*envelope, *error("UNKNOWN COMMAND")])
        # An envelope without a body, and around a body that begins with an empty frame.
        exchange([*envelope], [*envelope, *bad])
        exchange([*envelope, b"", *get], [*envelope, *bad])
    exchange(get, found)
    exchange([PING], [OK])
    exchange([b"\xff"], error("UNKNOWN COMMAND"))
    # Without an envelope, although an empty frame comes later.
    exchange([UPDATE, b"t", b"", b""], [OK])
    exchange([b"c", b"cookie", b"", PING], error("UNKNOWN COMMAND"))
    exchange([DELETE_TABLE, b"t", b""], bad)
    # Neither an envelope nor a body that begins at once.
    exchange([b"cookie"], bad)
    exchange([b"cookie", b"cookie", GET], bad)
    two_hops(kv)
    own_id(kv)


def two_hops(kv):
    """Through a ROUTER and a DEALER that another process might run."""
    front, back = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    front.linger = back.linger = 0
    middle = f"tcp://127.0.0.1:{front.bind_to_random_port('tcp://127.0.0.1')}"
    back.connect(kv)

    def forward():
        try:
            zmq.proxy(front, back)
        except zmq.ContextTerminated:
            front.close()
            back.close()

    threading.Thread(target=forward, daemon=True).start()
    clients = [Client(middle) for _ in range(3)]
    for client in clients:
        client.expect([OK, b"v"], GET, b"t", b"k")
        client.expect(error("KEY NOT FOUND"), GET, b"t", b"none")
    dealer = connect(zmq.DEALER, middle)
    dealer.send_multipart([b"cookie", b"", GET, b"t", b"k"])
    check(dealer.recv_multipart(), [b"cookie", b"", OK, b"v"])


def own_id(kv):
    """A client that comes back under its own routing id takes the place of its predecessor."""
    for _ in range(5):
        dealer = connect(zmq.DEALER, kv, identity=b"the same")
        dealer.send_multipart([GET, b"t", b"k"])
        check(dealer.recv_multipart(), [OK, b"v"])


def chapter_order(kv):
    """One connection pipelines: its requests are executed and answered in the order in which it sent them."""
    req = Client(kv)
    req.ok(CREATE_TABLE, b"t")
    chance = random.Random(7)
    dealer = connect(zmq.DEALER, kv, sndhwm=0, rcvhwm=0)
    model, expected = {}, []
    for index in range(20_000):
        key, value = b"k%d" % chance.randrange(4), b"v%d" % index
        command = chance.choice([UPDATE, UPDATE, GET, GET, DELETE])
        if command == UPDATE:
            dealer.send_multipart([UPDATE, b"t", key, value])
            model[key] = value
            expected.append([OK])
        else:
            dealer.send_multipart([command, b"t", key])
            expected.append([OK, model[key]] if key in model else error("KEY NOT FOUND"))
            if command == DELETE:
                model.pop(key, None)
    for index, reply in enumerate(expected):
        check(dealer.recv_multipart(), reply, f"reply {index}")
    for key, value in model.items():
        req.expect([OK, value], GET, b"t", key)


def subscribe(publish, client, *topics):
    """A SUB socket whose subscriptions have arrived: it has received a change of a table made for that."""
    sub = connect(zmq.SUB, publish, rcvhwm=0)
    for topic in topics:
        sub.subscribe(topic)
    probe = b"probe %d" % random.randrange(2**60)
    sub.subscribe(probe)
    client.ok(CREATE_TABLE, probe)
    sub.rcvtimeo = 20
    while True:
        client.ok(UPDATE, probe, b"", b"")
        try:
            sub.recv_multipart()
            break
        except zmq.Again:
            pass
    client.ok(UPDATE, probe, b"end", b"")
    sub.rcvtimeo = PATIENCE_MILLIS
    while sub.recv_multipart() != [probe, UPDATED, b"end"]:
        pass
    sub.unsubscribe(probe)
    return sub


def receive(sub, *expected):
    for notification in expected:
        check(sub.recv_multipart(), list(notification))


def chapter_notifications(kv, publish):
    """One for each change, in order, and for nothing else."""
    c = Client(kv)
    sub = subscribe(publish, c, b"n")
    c.ok(CREATE_TABLE, b"n")
    c.ok(CREATE_TABLE, b"other")
    c.ok(UPDATE, b"other", b"k", b"v")
    c.ok(UPDATE, b"n", b"k", b"1")
    c.ok(UPDATE, b"n\0", b"k", b"2", be(100))
    # A request that changes no value is not announced.
    c.ok(TOUCH, b"n", b"k", be(200))
    c.ok(GET_AND_TOUCH, b"n", b"k", be(300))
    version = be(c.entry(b"n", b"k")[1])
    c.ok(SCAN, b"n", b"", be(100), b"\0")
    c.ask(INCREMENT, b"n", b"none", signed(1), b"bad ttl")
    c.ok(GET, b"n", b"k")
    c.ask(COMPARE_AND_SWAP, b"n", b"k", be(1), b"no")
    c.ask(DELETE, b"n", b"none")
    c.ask(UPDATE, b"n", b"k" * 65, b"v")
    [version] = c.ok(COMPARE_AND_SWAP, b"n", b"k", version, b"3")
    c.ok(COMPARE_AND_DELETE, b"n", b"k", version)
    c.ok(UPDATE_MANY, b"n", b"", b"a", b"1", b"b", b"2", b"a", b"3")
    c.ok(DELETE, b"n", b"a")
    receive(sub, (b"n", UPDATED, b"k"), (b"n", UPDATED, b"k"), (b"n", UPDATED, b"k"), (b"n", DELETED, b"k"))
    received = [sub.recv_multipart() for _ in range(4)]
    check([n for n in received if n[2] == b"a"], [[b"n", UPDATED, b"a"], [b"n", UPDATED, b"a"], [b"n", DELETED, b"a"]])
    check([n for n in received if n[2] == b"b"], [[b"n", UPDATED, b"b"]])
    c.ok(INCREMENT, b"n", b"count", signed(1))
    c.ok(INCREMENT, b"n", b"count", signed(-1))
    c.ok(DELETE_MANY, b"n", b"none", b"count", b"count")
    receive(sub, (b"n", UPDATED, b"count"), (b"n", UPDATED, b"count"), (b"n", DELETED, b"count"))
    # A deleted table: each live element once, and for each key before any change of the new table.
    c.ok(UPDATE, b"n", b"", b"empty key")
    receive(sub, (b"n", UPDATED, b""))
    c.ok(DELETE_TABLE, b"n")
    c.ok(CREATE_TABLE, b"n\0")
    c.ok(UPDATE, b"n", b"b", b"new")
    c.ok(UPDATE, b"n", b"", b"new")
    received = [sub.recv_multipart() for _ in range(4)]
    for key in [b"", b"b"]:
        check([n for n in received if n[2] == key], [[b"n", DELETED, key], [b"n\0", UPDATED, key]])
    # An expiry is announced, and not before its time.
    start = time.monotonic()
    c.ok(UPDATE, b"n", b"k", b"v", be(1))
    receive(sub, (b"n\0", UPDATED, b"k"), (b"n\0", DELETED, b"k"))
    assert time.monotonic() - start >= 1.0, "an expiry was announced early"
    c.expect(error("KEY NOT FOUND"), GET, b"n", b"k")
    # A write that meets a deadline that has passed: the expiry first, then itself.
    c.ok(UPDATE, b"n", b"k", b"old", be(1))
    while c.ask(COMPARE_AND_SWAP, b"n", b"k", be(0), b"new")[0] == ERROR:
        pass
    receive(sub, (b"n\0", UPDATED, b"k"), (b"n\0", DELETED, b"k"), (b"n\0", UPDATED, b"k"))
    exact = subscribe(publish, c, b"users\0")
    for name in [b"users2", b"users\0"]:
        c.ok(CREATE_TABLE, name)
        c.ok(UPDATE, name, b"k", b"v")
    receive(exact, (b"users\0", UPDATED, b"k"))
    # No notification is left over.
    for left in [sub, exact]:
        check(left.poll(0), 0, "something was announced twice")


def chapter_nonsense(kv):
    """Whatever comes is answered once, and the server still serves."""
    chance = random.Random(11)
    dealer, req = connect(zmq.DEALER, kv, sndhwm=0, rcvhwm=0), Client(kv)
    lengths = [0, 0, 1, 1, 1, 2, 3, 8, 8, 64, 65, 255, 256, 1024, 1025, 5000]
    for _ in range(200):
        for _ in range(20):
            frames = [chance.randbytes(chance.choice(lengths)) for _ in range(chance.randrange(1, 12))]
            if chance.random() < 0.5:
                frames = [b"", bytes([chance.randrange(16)]), *frames]
            dealer.send_multipart(frames)
        for _ in range(20):
            dealer.recv_multipart()
        req.expect([OK], PING)
    # More frames or bytes than any command has.
    for frames in [[PING] * 5_000, [UPDATE, b"t", b"k", b"v" * (4 << 20)], [b"v" * 1000] * 2_000]:
        req.expect(error("BAD REQUEST"), *frames)
        dealer.send_multipart([b"cookie", b"", *frames])
        check(dealer.recv_multipart(), [b"cookie", b"", *error("BAD REQUEST")])
        dealer.send_multipart(frames)
        check(dealer.recv_multipart(), error("BAD REQUEST"))
    # A frame above 16 MiB ends its connection, and libzmq makes a new one.
    dealer.send_multipart([UPDATE, b"t", b"k", b"v" * ((16 << 20) + 1)])
    dealer.rcvtimeo = 100
    while True:
        dealer.send_multipart([PING])
        try:
            check(dealer.recv_multipart(), [OK])
            break
        except zmq.Again:
            pass
    req.expect([OK], PING)
    report = json.loads(req.ok(STATS)[0])
    assert isinstance(report, dict) and report, report
