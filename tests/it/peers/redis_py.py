"""A chapter of work by redis-py: with and without hiredis, over both versions of the protocol, threads and asyncio.

    redis_py.py HOST PORT

It runs against Spindle and against redis-server, so that the chapter itself is right.
"""

import asyncio
import os
import queue
import sys
import threading
import time

import redis
import redis.asyncio
from redis._parsers import _HiredisParser, _RESP2Parser, _RESP3Parser
from refusal import refuses

HOST, PORT = sys.argv[1], int(sys.argv[2])
KEYS = [b"k" * size for size in (1, 63, 64, 65, 100, 4_096)] + [bytes(range(256)), b"\r\n\0\xff"]
VALUES = [b"", b"\0", bytes(range(256)), b"\r\n$-1\r\n", os.urandom(70_000), b"v" * (1 << 20)]


def client(parser, protocol, **more):
    pool = redis.ConnectionPool(host=HOST, port=PORT, protocol=protocol, parser_class=parser, **more)
    return redis.Redis(connection_pool=pool)


def strings(server):
    server.flushdb()
    for key in KEYS:
        for value in VALUES:
            assert server.set(key, value) and server.get(key) == value and server.strlen(key) == len(value)
    assert sorted(server.keys()) == sorted(KEYS) and server.dbsize() == len(KEYS)
    assert server.get("absent") is None and server.mget(["absent", KEYS[0]]) == [None, VALUES[-1]]
    large = b"l" * (16 << 20)
    assert server.set("large", large) and server.get("large") == large and server.getrange("large", -2, -1) == b"ll"
    assert server.mset({b"a": b"1", b"b": b"2"}) and server.mget("a", "b") == [b"1", b"2"]
    assert server.incrby("a", 41) == 42 and server.incrbyfloat("b", 0.5) == 2.5 and server.append("a", "!") == 3
    assert server.set("a", "x", nx=True) is None and server.set("a", "x", xx=True, get=True) == b"42!"
    assert server.getdel("a") == b"x" and server.delete("b", "absent") == 1 and server.exists("a", "b") == 0
    payload = server.dump(KEYS[0])
    assert server.restore("copy", 0, payload) and server.get("copy") == VALUES[-1]
    assert server.type("copy") == b"string" and server.object("encoding", "copy") == b"raw"
    server.delete("large")


def times(server):
    assert server.set("t", "v", px=50) and server.set("u", "v", ex=100) and 0 < server.ttl("u") <= 100
    assert server.expire("u", 200, gt=True) and not server.expire("u", 100, gt=True) and server.persist("u")
    assert server.ttl("u") == -1 and server.ttl("absent") == -2
    assert server.expireat("u", 9_000_000_000) and server.expiretime("u") == 9_000_000_000
    while server.get("t") is not None:
        pass
    assert server.pttl("t") == -2 and server.getex("u", persist=True) == b"v" and server.expiretime("u") == -1


def pipelines(server):
    with server.pipeline(transaction=False) as pipe:
        for number in range(5_000):
            pipe.set(f"p{number}", number)
        for number in range(5_000):
            pipe.get(f"p{number}")
        pipe.incr("p1").incr("x", 5).lpush("p1", 1)
        replies = pipe.execute(raise_on_error=False)
    assert replies[:5_000] == [True] * 5_000 and replies[5_000:10_000] == [b"%d" % number for number in range(5_000)]
    assert replies[10_000:10_002] == [2, 5] and isinstance(replies[10_002], redis.ResponseError)


def transactions(server):
    server.flushdb()
    with server.pipeline() as pipe:
        pipe.set("a", 1).incr("a", 41).get("a").mset({"b": 2, "c": 3}).mget("b", "c").expire("a", 100).ttl("a")
        assert pipe.execute() == [True, 42, b"42", True, [b"2", b"3"], True, 100]
        pipe.set("w", "x").incr("w").get("w")
        done, refused, value = pipe.execute(raise_on_error=False)
        assert done and isinstance(refused, redis.ResponseError) and value == b"x"
        refuses(redis.ResponseError, pipe.set("w", "y").execute_command("SET", "w").execute)
        pipe.reset()
        pipe.rename("b", "moved").copy("moved", "copy").msetnx({"copy": 1, "new": 1}).exists("b", "moved", "new")
        assert pipe.execute() == [True, True, False, 1] and server.get("w") == b"x"
        pipe.watch("a")
        assert pipe.get("a") == b"42" and server.incr("a") == 43
        pipe.multi()
        refuses(redis.WatchError, pipe.set("a", 0).execute)
        pipe.watch("a")
        pipe.multi()
        assert server.set("b", 1) and pipe.get("a").set("a", 0).execute() == [b"43", True]
    assert server.rename("moved", "b") and not server.renamenx("b", "copy") and server.renamenx("b", "moved")
    refuses(redis.ResponseError, server.rename, "absent", "b")
    assert server.copy("moved", "copy", replace=True) and server.get("copy") == b"2"
    assert server.msetnx({"n1": 1, "n2": 2}) and not server.msetnx({"n2": 3, "n3": 3}) and not server.exists("n3")

    def add(pipe):
        sum = int(pipe.get("sum") or 0) + 1
        pipe.multi()
        pipe.set("sum", sum).incr("attempts")
        return sum

    adders = [threading.Thread(target=lambda: [server.transaction(add, "sum") for _ in range(50)]) for _ in range(4)]
    [adder.start() for adder in adders]
    [adder.join() for adder in adders]
    assert server.mget("sum", "attempts") == [b"200", b"200"]
    assert server.transaction(add, "sum", value_from_callable=True) == 201


def received(channel, count):
    """So many messages, each as its type, channel and data."""
    messages = [channel.get_message(timeout=60) for _ in range(count)]
    return [(message["type"], message["channel"], message["data"]) for message in messages]


def channels(server):
    with server.pubsub() as channel:
        channel.subscribe("news", "other")
        channel.psubscribe("ne?s", "x*")
        assert {message[2] for message in received(channel, 4)} == {1, 2, 3, 4}
        assert server.publish("news", b"\0\xff") == 2 and server.publish("nobody", "") == 0
        assert sorted(received(channel, 2)) == [("message", b"news", b"\0\xff"), ("pmessage", b"news", b"\0\xff")]
        assert set(server.pubsub_channels()) == {b"news", b"other"} and server.pubsub_numpat() == 2
        assert server.pubsub_numsub("news", "absent") == [(b"news", 1), (b"absent", 0)]
        with server.pipeline() as pipe:
            [pipe.publish("other", number) for number in range(1_000)]
            assert pipe.execute() == [1] * 1_000
        assert [int(message[2]) for message in received(channel, 1_000)] == list(range(1_000))
        channel.ping("alive")
        assert received(channel, 1)[0][2] == b"alive"
        channel.unsubscribe()
        channel.punsubscribe("x*")
        assert sorted(message[1] for message in received(channel, 3)) == [b"news", b"other", b"x*"]
        assert server.publish("news", "last") == 1 and received(channel, 1) == [("pmessage", b"news", b"last")]
    came = queue.SimpleQueue()
    with server.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe(**{"to-a-thread": came.put})
        thread = channel.run_in_thread(sleep_time=0.01, daemon=True)
        # Nothing says that the confirmation has come: it is ignored.
        while server.pubsub_numsub("to-a-thread") != [(b"to-a-thread", 1)]:
            pass
        assert server.publish("to-a-thread", "1") == 1 and came.get(timeout=60)["data"] == b"1"
        thread.stop()
        thread.join()


def key_events(server):
    server.flushdb()
    assert server.config_set("notify-keyspace-events", "KEA")
    with server.pubsub() as channel:
        channel.psubscribe("__key*@0__:*")
        received(channel, 1)
        server.set("k", 1, px=50)
        events = ["set", "expire", "expired"]
        own = [f"__keyspace@0__:k {event}" for event in events]
        kinds = [f"__keyevent@0__:{event} k" for event in events]
        came = [f"{name.decode()} {data.decode()}" for _, name, data in received(channel, 6)]
        # Of each channel in their order.
        assert [event for event in came if event in own] == own and sorted(came) == sorted(own + kinds), came
        with server.pipeline() as pipe:
            pipe.set("a", 1).incr("a").rename("a", "b").copy("b", "c").append("c", 1).setrange("c", 0, "9")
            pipe.set("a", 0).expire("a", 100).persist("a").incrbyfloat("a", 0.5).delete("a").flushdb().execute()
        came = [(name, data) for _, name, data in received(channel, 24)]
        names = ["set", "incrby", "rename_from", "rename_to", "copy_to", "append", "setrange"]
        names += ["set", "expire", "persist", "incrbyfloat", "del"]
        counts = sorted(name.removeprefix(b"__keyevent@0__:").decode() for name, _ in came if b"event" in name)
        assert counts == sorted(names), came
        of_a = [data.decode() for name, data in came if name == b"__keyspace@0__:a"]
        assert of_a == ["set", "incrby", "rename_from", *names[7:]], came
    keys = [f"lapse:{number}".encode() for number in range(500)]
    with server.pubsub(ignore_subscribe_messages=True) as channel:
        came = queue.SimpleQueue()
        channel.subscribe(**{"__keyevent@0__:expired": lambda message: came.put(message["data"])})
        thread = channel.run_in_thread(sleep_time=0.01, daemon=True)
        while server.pubsub_numsub("__keyevent@0__:expired") != [(b"__keyevent@0__:expired", 1)]:
            pass
        with server.pipeline() as pipe:
            [pipe.set(key, "v", px=20 + number % 30) for number, key in enumerate(keys)]
            pipe.execute()
        # Each exactly once.
        assert sorted(came.get(timeout=60) for _ in keys) == sorted(keys)
        thread.stop()
        thread.join()


def walks(server):
    """A walk returns each key that stays, while others write."""
    server.flushdb()
    stay = {b"stay:%d" % number for number in range(10_000)}
    server.mset(dict.fromkeys(stay, b"v"))
    is_over = threading.Event()

    def write():
        with client(_RESP2Parser, 2) as own:
            number = 0
            while not is_over.is_set():
                number += 1
                own.set(f"go:{number}", "v", px=20)
                own.delete(f"go:{number - 50}")

    writer = threading.Thread(target=write)
    writer.start()
    for count in (100, 1_000):
        assert stay <= set(server.scan_iter(count=count)), count
        assert stay == set(server.scan_iter(match="stay:*", count=count, _type="string"))
    is_over.set()
    writer.join()


def threads(server):
    server.delete("sum")

    def add():
        for _ in range(500):
            server.incr("sum")

    adders = [threading.Thread(target=add) for _ in range(8)]
    [adder.start() for adder in adders]
    [adder.join() for adder in adders]
    assert server.get("sum") == b"4000"


def reconnects(server):
    """A connection that is closed by the server is made anew."""
    own = server.client_id()
    assert server.execute_command("QUIT") in (True, b"OK")
    try:
        server.ping()
    except redis.ConnectionError:
        pass  # it was sent before the end had come
    assert server.ping() and server.client_id() != own
    assert server.client_setname("chapter") and server.client_getname() in ("chapter", b"chapter")
    assert server.info()["redis_version"] and server.config_get("maxmemory*")
    assert server.echo("e") == b"e" and abs(server.time()[0] - time.time()) < 100
    for wrong in ("LPUSH", "EVAL_ABSENT"):
        try:
            server.execute_command(wrong, "only")
        except redis.ResponseError:
            continue
        raise AssertionError(wrong)


async def at_once(protocol):
    server = redis.asyncio.Redis(host=HOST, port=PORT, protocol=protocol, db=3)
    await server.flushdb()
    await asyncio.gather(*(server.set(f"a{number}", number) for number in range(50)))
    values = await asyncio.gather(*(server.get(f"a{number}") for number in range(50)))
    assert values == [b"%d" % number for number in range(50)]
    async with server.pipeline(transaction=False) as pipe:
        replies = await pipe.set("k", "v").get("k").delete("k").execute()
    assert replies == [True, b"v", 1]
    async with server.pipeline() as pipe:
        replies = await pipe.set("k", 1).incr("k").execute()
    assert replies == [True, 2]

    async def add(pipe):
        sum = int(await pipe.get("sum") or 0)
        pipe.multi()
        pipe.set("sum", sum + 1)

    await asyncio.gather(*(server.transaction(add, "sum") for _ in range(20)))
    assert await server.get("sum") == b"20"
    await server.config_set("notify-keyspace-events", "KEA")
    async with server.pubsub(ignore_subscribe_messages=True) as channel:
        await channel.psubscribe("__keyevent@3__:*")
        await channel.subscribe("news")
        assert await channel.get_message(timeout=60) is None is await channel.get_message(timeout=60)
        await server.set("lapse", "v", px=20)
        data = [(await channel.get_message(timeout=60))["channel"] for _ in range(3)]
        assert data == [b"__keyevent@3__:" + event for event in (b"set", b"expire", b"expired")]
        assert await server.publish("news", "1") == 1
        async for message in channel.listen():
            assert message["data"] == b"1"
            break
    assert len([key async for key in server.scan_iter("a*", 50)]) == 50
    await server.aclose()


FEW = (strings, times, pipelines, transactions, channels, key_events)
ALL = (*FEW, walks, threads, reconnects)
for parser, protocol, chapters in (
    (_RESP2Parser, 2, ALL),
    (_RESP3Parser, 3, FEW),
    (_HiredisParser, 2, FEW),
    (_HiredisParser, 3, ALL),
):
    with client(parser, protocol) as server:
        for chapter in chapters:
            begin = time.monotonic()
            chapter(server)
            print(parser.__name__, protocol, chapter.__name__, f"{time.monotonic() - begin:.2f} s")
    asyncio.run(at_once(protocol))
