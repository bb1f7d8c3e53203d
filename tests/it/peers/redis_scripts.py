"""A chapter of work by Python libraries that send scripts: locks, counters and limiters of rates.

    redis_scripts.py HOST PORT

It runs against Spindle and against redis-server, so that the chapter itself is right.
"""

import asyncio
import logging
import sys

import aiocache
import cashews
import django.conf
import limits
import pottery
import redis
import redis.asyncio
import redlock
from aiocache.lock import OptimisticLock, OptimisticLockError, RedLock
from django.core.cache import caches
from redis.exceptions import LockError, LockNotOwnedError
from refusal import refuses

HOST, PORT = sys.argv[1], int(sys.argv[2])
URL = f"redis://{HOST}:{PORT}"


def redis_py():
    server = redis.Redis(host=HOST, port=PORT)
    lock, other = server.lock("lock", timeout=20), server.lock("lock", timeout=20)
    assert lock.acquire(blocking=False) and not other.acquire(blocking=False)
    assert lock.extend(30) and 49_000 < server.pttl("lock") <= 50_000
    assert lock.extend(30, replace_ttl=True) and 29_000 < server.pttl("lock") <= 30_000
    assert lock.reacquire() and 19_000 < server.pttl("lock") <= 20_000
    lock.release()
    assert server.exists("lock") == 0
    refuses(LockError, lock.release)
    with server.lock("lock", timeout=20) as held:
        server.set("lock", "another")
        refuses(LockNotOwnedError, held.extend, 1)
        refuses(LockNotOwnedError, held.reacquire)
        refuses(LockNotOwnedError, held.release)
        held.local.token = b"another"
    script = server.register_script("return 1")
    if "spindle" in server.info("server").get("server_name", ""):
        refuses(redis.exceptions.ResponseError, script)


async def redis_py_asyncio():
    async with redis.asyncio.Redis(host=HOST, port=PORT) as server:
        async with server.lock("lock", timeout=20) as lock:
            assert await lock.extend(5) and 24_000 < await server.pttl("lock") <= 25_000
        assert await server.exists("lock") == 0
        order = []

        async def critical(number):
            async with server.lock("critical", timeout=20, sleep=0.001):
                order.append((number, "in"))
                await asyncio.sleep(0)
                order.append((number, "out"))

        await asyncio.gather(*(critical(number) for number in range(20)))
        assert all(begin[0] == end[0] for begin, end in zip(order[::2], order[1::2], strict=True))


def limits_fixed_window():
    server = redis.Redis(host=HOST, port=PORT)
    limiter = limits.strategies.FixedWindowRateLimiter(limits.storage.storage_from_string(URL))
    rate = limits.parse("5/hour")
    assert limiter.hit(rate, "timed", cost=2)
    (timed,) = server.keys("*timed*")
    assert 3_590 < server.ttl(timed) <= 3_600
    server.expire(timed, 1_000)
    assert limiter.hit(rate, "timed", cost=2) and 990 < server.ttl(timed) <= 1_000, "the first hit sets the time"
    hits = [limiter.hit(rate, "limits", cost=cost) for cost in (1, 2, 2, 1)]
    assert hits == [True, True, True, False], hits
    window = limiter.get_window_stats(rate, "limits")
    assert window.remaining == 0, window
    limiter.clear(rate, "limits")
    assert limiter.hit(rate, "limits", cost=5)


def limits_sliding_window():
    server = redis.Redis(host=HOST, port=PORT)
    limiter = limits.strategies.SlidingWindowCounterRateLimiter(limits.storage.storage_from_string(URL))
    rate = limits.parse("5/hour")
    hits = [limiter.hit(rate, "sliding", cost=cost) for cost in (6, 1, 2, 2, 1)]
    assert hits == [False, True, True, True, False], hits
    assert limiter.get_window_stats(rate, "sliding").remaining == 0
    (current,) = server.keys("*sliding*")
    assert 7_190_000 < server.pttl(current) <= 7_200_000
    # A length is over: the window becomes the previous one, and counts for half of the time.
    server.pexpire(current, 1_800_000)
    assert limiter.test(rate, "sliding", cost=3) and not limiter.test(rate, "sliding", cost=4)
    previous, now = sorted(server.keys("*sliding*"), key=server.pttl)
    assert [server.get(previous), server.get(now)] == [b"5", b"0"]
    assert 1_790_000 < server.pttl(previous) <= 1_800_000 and 5_390_000 < server.pttl(now) <= 5_400_000
    # Without a look before it.
    server.pexpire(now, 900_000)
    assert limiter.hit(rate, "sliding", cost=5) and not limiter.hit(rate, "sliding")
    assert sorted(map(server.get, server.keys("*sliding*"))) == [b"0", b"5"]
    limiter.clear(rate, "sliding")
    assert limiter.hit(rate, "sliding", cost=5)


def django_redis():
    backend = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": f"{URL}/3"}
    django.conf.settings.configure(CACHES={"default": backend})
    cache = caches["default"]
    refuses(ValueError, cache.incr, "absent")
    cache.set("n", 41, timeout=100)
    assert cache.incr("n") == 42 and cache.decr("n", 2) == 40 and 90 < cache.ttl("n") <= 100
    assert cache.incr("new", 5, ignore_key_check=True) == 5 and cache.get("new") == 5
    # The sum is beyond 64 bits, so the library adds itself after the error.
    cache.set("large", 2**63 - 1)
    assert cache.incr("large", 1) == 2**63
    with cache.lock("lock", timeout=10):
        assert not cache.lock("lock", timeout=10).acquire(blocking=False)


async def cashews_cache():
    cache = cashews.Cache()
    cache.setup(URL, suppress=False, client_side=False)
    assert await cache.incr("cashews", expire=100) == 1 and await cache.incr("cashews", 4, expire=200) == 5
    assert 90 < await cache.get_expire("cashews") <= 100
    async with cache.lock("cashews-lock", expire=10):
        assert await cache.is_locked("cashews-lock")
    assert not await cache.is_locked("cashews-lock")
    await cache.close()


def redlock_py():
    manager = redlock.Redlock([{"host": HOST, "port": PORT, "db": 0}], retry_count=1)
    lock = manager.lock("redlock", 10_000)
    assert lock and not manager.lock("redlock", 10_000)
    manager.unlock(lock._replace(key="another"))
    assert not manager.lock("redlock", 10_000)
    manager.unlock(lock)
    assert manager.lock("redlock", 10_000)


def pottery_redlock():
    server = redis.Redis(host=HOST, port=PORT)
    lock = pottery.Redlock(key="pottery", masters={server}, auto_release_time=10)
    assert lock.acquire(blocking=False) and 9 < lock.locked() <= 10
    lock.extend()
    assert 9_000 < server.pttl("redlock:pottery") <= 10_000
    lock.release()
    assert not lock.locked() and server.exists("redlock:pottery") == 0
    ids = pottery.NextID(key="pottery", masters={server})
    assert [next(ids) for _ in range(3)] == [1, 2, 3]


async def aiocache_locks():
    cache = aiocache.Cache(aiocache.Cache.REDIS, endpoint=HOST, port=PORT)
    async with RedLock(cache, "aiocache", lease=10):
        assert await cache.exists("aiocache-lock")
    assert not await cache.exists("aiocache-lock")
    await cache.set("aiocache", "old")
    async with OptimisticLock(cache, "aiocache") as lock:
        assert await lock.cas("new", ttl=100)
        try:
            await lock.cas("newer")
        except OptimisticLockError:
            pass
        else:
            raise AssertionError("the value has changed meanwhile")
    assert await cache.get("aiocache") == "new"
    await cache.close()


def main():
    logging.disable(logging.CRITICAL)
    redis.Redis(host=HOST, port=PORT).flushall()
    for chapter in (redis_py, limits_fixed_window, limits_sliding_window, django_redis, redlock_py, pottery_redlock):
        chapter()
        print(chapter.__name__, flush=True)
    for chapter in (redis_py_asyncio, cashews_cache, aiocache_locks):
        asyncio.run(chapter())
        print(chapter.__name__, flush=True)


main()
