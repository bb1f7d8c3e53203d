"""A chapter of work by redis-py: with and without hiredis, over both versions of the protocol, threads and asyncio.

    redis_py.py HOST PORT

It runs against Spindle and against redis-server, so that the chapter itself is right.
"""

import asyncio
import os
import sys
import threading
import time

import redis
import redis.asyncio
from redis._parsers import _HiredisParser, _RESP2Parser, _RESP3Parser

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
    assert len([key async for key in server.scan_iter("a*", 50)]) == 50
    await server.aclose()


ALL = (strings, times, pipelines, walks, threads, reconnects)
FEW = (strings, times, pipelines)
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
