"""Functions whose results a table keeps."""

import asyncio
import datetime
import decimal
import logging
import math
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from fractions import Fraction

import pytest
from conftest import PATIENCE
from server import Server

import spindle
from spindle import aio
from spindle._call_keys import CallKeys


@pytest.mark.parametrize("kind", ["too long", "not for the codec"])
def test_a_result_that_cannot_be_kept_is_returned_at_once(client, name, caplog, kind):
    cache = client.table(name, create=True, codec=spindle.JSON)
    result = "x" * 100_000 if kind == "too long" else object()

    @cache.cached(ttl=60, wait=30)
    def get(number):
        return result

    begun, results = time.monotonic(), []
    for _ in range(2):
        threads = [threading.Thread(target=lambda: results.append(get(1))) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert results == [result] * 8 and time.monotonic() - begun < 5
    assert cache.cache_failures == 8 and len(cache) == 0, "the lock is given back"
    assert len(caplog.records) == 1 and caplog.records[0].levelno == logging.WARNING
    assert "get" in caplog.text


def test_a_value_that_the_codec_does_not_read_is_computed_again(client, name):
    cache = client.table(name, create=True, codec=spindle.JSON)
    cache.set("own", 1)
    client.table(name).set("own", b"\xff no JSON")

    @cache.cached(ttl=60, key=lambda: "own")
    def get():
        return 7

    assert get() == get() == 7 and cache.cache_failures > 0 and cache["own"] == 7


def test_a_builtin_may_make_the_key(client, name):
    cache = client.table(name, create=True, codec=spindle.JSON)

    @cache.cached(ttl=60, key=str)
    def double(number):
        return number * 2

    assert double(3) == double(3) == 6 and cache["3"] == 6


def test_without_a_server_results_are_computed(caplog):
    server = Server()
    with spindle.Client(server.kv, timeout=0.2) as client:
        cache, computed = client.table("cache", create=True, codec=spindle.JSON), []

        @cache.cached(ttl=60)
        def double(number):
            computed.append(number)
            return number * 2

        assert double(1) == double(1) == 2 and computed == [1]
        server.kill()
        assert double(1) == double(2) - 2 == double(1) == 2 and computed == [1, 1, 2, 1]
        # The first failure may be the loss of the connection.
        assert cache.cache_failures == 3 and 1 <= len(caplog.records) <= 2
        server.start()
    server.end()


def test_a_wait_for_a_value_that_is_computed_has_a_bound(client, name):
    cache = client.table(name, create=True, codec=spindle.JSON)
    begun, released, calls = threading.Event(), threading.Event(), []

    @cache.cached(ttl=60, wait=0.3)
    def slow():
        calls.append(1)
        if len(calls) == 1:
            begun.set()
            released.wait(PATIENCE)
        return 1

    first = threading.Thread(target=slow)
    first.start()
    begun.wait(PATIENCE)
    asked = time.monotonic()
    assert slow() == 1 and time.monotonic() - asked < 2
    released.set()
    first.join()


def test_a_task_that_is_cancelled_gives_the_lock_back(shared_server, name):
    async def body():
        async with aio.Client(shared_server.kv, timeout=PATIENCE) as client:
            cache = await client.table(name, create=True, codec=spindle.JSON)

            @cache.cached(ttl=60, wait=30)
            async def slow(number):
                await asyncio.sleep(0.002)
                return number

            for steps in range(80):
                task = asyncio.ensure_future(slow(steps))
                await asyncio.sleep(steps % 20 / 4000)
                task.cancel()
                await asyncio.wait([task])
            assert all([isinstance(await cache.get(key), int) async for key in cache.scan()])
            assert await asyncio.wait_for(asyncio.gather(*(slow(number) for number in range(80))), 5) == list(range(80))

    asyncio.run(body())


@dataclass
class Point:
    x: int
    y: object = None


class Plain:
    def __init__(self, state):
        self.state = state

    def method(self):
        return self.state

    @classmethod
    def made(cls):
        return cls(None)


def function(a, b=2, *rest, **named):
    return a


def test_equal_arguments_are_one_key_however_they_are_passed():
    keys = CallKeys(function, None)
    one = keys.of((1, 2), {})
    for arguments, named in [((1,), {"b": 2}), ((), {"a": 1, "b": 2}), ((), {"b": 2, "a": 1}), ((1,), {}), ((True, 2.0), {})]:
        assert keys.of(arguments, named) == one
    with pytest.raises(TypeError, match="argument"):
        keys.of((), {})
    long = "a" * 50
    same = [
        [(long, long), (long, "".join(["a"] * 50))],
        [1, 1.0, True, 1 + 0j, Fraction(1), decimal.Decimal("1.00")],
        [{"a": 1, "b": [2]}, {"b": [2], "a": 1}],
        [{1, 2, 300}, frozenset([300, 2, 1])],
        [Point(1, {"z", "y"}), Point(1, {"y", "z"})],
        [Plain({"a": {1, 2}}), Plain({"a": {2, 1}})],
        [b"x", bytearray(b"x")],
        [
            datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.timezone.utc),
            datetime.datetime(2026, 1, 1, 13, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
        ],
        [0.1],
        [decimal.Decimal("0.1"), Fraction(1, 10)],
        [float("inf"), decimal.Decimal("inf")],
        ["1"],
        [None],
        [(1, 2)],
        [[1, 2]],
        [(1, (2,))],
        [("ab", "c")],
        [("a", "bc")],
        [datetime.datetime(2026, 1, 1, 12)],
        [function],
        [Point],
    ]
    found = [{keys.of((value,), {}) for value in values} for values in same]
    assert all(len(those) == 1 for those in found) and len(set.union(*found)) == len(same)
    for wrong in (lambda: None, threading.Lock(), (itself := []).append(itself) or itself):
        with pytest.raises(TypeError, match="key="):
            keys.of((wrong,), {})


def test_a_method_is_one_of_its_object():
    keys = CallKeys(function, None)
    methods = [
        *("abc".upper, "xyz".upper, "abc".lower, "abc".__len__, "xyz".__len__, None.__bool__),
        *([1].append, [2].append, dict.fromkeys, bytes.fromhex, bytearray.fromhex),
        *(Plain(1).method, Plain(2).method, Plain.made, len, math.sin, function),
    ]
    assert len({keys.of((method,), {}) for method in methods}) == len(methods)
    assert keys.of(("abc".upper,), {}) == keys.of(("".join(["a", "bc"]).upper,), {})
    assert keys.of((Plain(1).method,), {}) == keys.of((Plain(1.0).method,), {})
    with pytest.raises(TypeError, match="key="):
        keys.of((threading.Lock().acquire,), {})


PROGRAM = """
from spindle._call_keys import CallKeys
import enum
Colour = enum.Enum("Colour", "RED GREEN")
def f(a, b=2): pass
words = ["heron", "stork", "owl", "crow", "tit"]
value = {frozenset(words): {"k": set(words)}, "c": Colour.RED, "n": [frozenset([word, None]) for word in words]}
print(CallKeys(f, None).of((value,), {}).decode())
"""


def test_a_key_is_the_same_in_every_process():
    keys = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM], env={**os.environ, "PYTHONHASHSEED": str(seed)}, check=True, capture_output=True
        ).stdout
        for seed in range(4)
    }
    assert len(keys) == 1
