"""Caches, sessions and results of frameworks: Django, Flask-Caching, aiocache, and Celery's result backend.

    redis_frameworks.py HOST PORT

It runs against Spindle and against redis-server, so that the chapters are right.
"""

import asyncio
import sys
import time

HOST, PORT = sys.argv[1], int(sys.argv[2])
URL = f"redis://{HOST}:{PORT}"


def django_cache():
    import django
    from django.conf import settings

    cache = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": f"{URL}/1", "KEY_PREFIX": "site"}
    settings.configure(
        CACHES={"default": cache},
        SESSION_ENGINE="django.contrib.sessions.backends.cache",
        INSTALLED_APPS=["django.contrib.sessions"],
        USE_TZ=True,
    )
    django.setup()
    from django.core.cache import cache

    cache.clear()
    value = {"name": "heron", "legs": [1, 2], "raw": bytes(range(256))}
    cache.set("bird", value, 100)
    assert cache.get("bird") == value and cache.get("absent", "else") == "else" and "bird" in cache
    assert not cache.add("bird", 1) and cache.add("wing", 1, None) and cache.incr("wing", 4) == 5
    assert cache.decr("wing") == 4 and cache.touch("bird", 50) and not cache.touch("absent", 50)
    assert cache.get_many(["bird", "wing", "absent"]) == {"bird": value, "wing": 4}
    assert cache.get_or_set("made", lambda: "once", 10) == "once" == cache.get_or_set("made", "twice", 10)
    cache.set("short", 1, 0.05 and 1)
    cache.set("gone", 1, 0)
    assert cache.get("gone") is None and cache.delete("wing") and not cache.delete("wing")
    large = b"l" * (8 << 20)
    cache.set("k" * 200, large, None)
    assert cache.get("k" * 200) == large and cache.delete_many(["k" * 200, "made"]) is None
    assert cache.incr_version("bird") == 2 and cache.get("bird") is None and cache.get("bird", version=2) == value
    while cache.get("short") is not None:
        time.sleep(0.01)


def django_cache_of_many():
    from django.core.cache import cache

    many = {f"many:{number}": number for number in range(500)}
    assert cache.set_many(many, 100) == [] and cache.get_many(many) == many
    cache.clear()
    assert cache.get_many(many) == {}


def django_sessions():
    from django.contrib.sessions.backends.cache import SessionStore

    session = SessionStore()
    session["user"], session["basket"] = 7, ["a", "b"]
    session.set_expiry(60)
    session.create()
    again = SessionStore(session.session_key)
    assert again["user"] == 7 and again["basket"] == ["a", "b"] and again.exists(session.session_key)
    again["basket"] += ["c"]
    again.save()
    assert SessionStore(session.session_key)["basket"] == ["a", "b", "c"]
    old = again.session_key
    again.cycle_key()
    assert again.session_key != old and SessionStore(again.session_key)["user"] == 7 and not again.exists(old)
    again.flush()
    assert SessionStore(old).load() == {}


def flask_caching():
    from flask import Flask
    from flask_caching import Cache

    config = {"CACHE_TYPE": "RedisCache", "CACHE_REDIS_URL": f"{URL}/2", "CACHE_KEY_PREFIX": "flask:"}
    app = Flask("chapter")
    cache = Cache(app, config=config)
    calls = []

    @app.route("/page/<name>")
    @cache.cached(timeout=100)
    def page(name):
        calls.append(name)
        return f"page {name}"

    @cache.memoize(100)
    def double(number):
        calls.append(number)
        return 2 * number

    with app.app_context():
        cache.clear()
        client = app.test_client()
        assert [client.get("/page/a").text for _ in range(3)] == ["page a"] * 3 and calls == ["a"]
        assert [double(4), double(4), double(5)] == [8, 8, 10] and calls == ["a", 4, 5]
        cache.delete_memoized(double, 4)
        assert double(4) == 8 and calls == ["a", 4, 5, 4]
        assert cache.set("k", [1, b"\0\xff"], timeout=100) and cache.get("k") == [1, b"\0\xff"] and cache.has("k")
        assert cache.add("k", 2) is False and cache.get_dict("k", "absent") == {"k": [1, b"\0\xff"], "absent": None}
        assert cache.delete("k") and cache.get("k") is None
        assert cache.set("n", 1) and cache.cache.inc("n", 4) == 5 and cache.cache.dec("n", 2) == 3
        assert cache.delete_many("n") and cache.clear() and double(4) == 8 and calls[-1] == 4 and len(calls) == 5


def flask_caching_of_many():
    from flask import Flask
    from flask_caching import Cache

    app = Flask("many")
    cache = Cache(app, config={"CACHE_TYPE": "RedisCache", "CACHE_REDIS_URL": f"{URL}/2"})
    with app.app_context():
        cache.set_many({f"m{number}": number for number in range(100)}, timeout=100)
        assert cache.get_many(*(f"m{number}" for number in range(100))) == list(range(100))


async def aiocache_of_one():
    from aiocache import Cache, cached
    from aiocache.serializers import PickleSerializer

    cache = Cache(Cache.REDIS, endpoint=HOST, port=PORT, db=4, namespace="aio", serializer=PickleSerializer())
    await cache.clear()
    value = {"a": [1, 2], "b": b"\0\xff" * 1_000}
    assert await cache.set("k", value, ttl=100) and await cache.get("k") == value and await cache.exists("k")
    assert await cache.add("new", 1) and await cache.delete("new") == 1 and await cache.get("new", "else") == "else"
    try:
        await cache.add("k", 1)
        raise AssertionError("it was there")
    except ValueError:
        pass
    assert await cache.expire("k", 50) and await cache.multi_get(["k", "absent"]) == [value, None]
    calls = []

    @cached(ttl=100, cache=Cache.REDIS, endpoint=HOST, port=PORT, namespace="made", key="f")
    async def slow():
        calls.append(1)
        return "made"

    assert [await slow() for _ in range(3)] == ["made"] * 3 and calls == [1]
    await asyncio.gather(*(cache.set(f"at-once:{number}", number) for number in range(50)))
    assert await cache.multi_get([f"at-once:{number}" for number in range(50)]) == list(range(50))
    assert await cache.clear(namespace="aio") and await cache.get("k") is None
    await cache.close()


async def aiocache_of_many():
    from aiocache import Cache

    cache = Cache(Cache.REDIS, endpoint=HOST, port=PORT, db=4, namespace="many")
    assert await cache.multi_set([(f"k{number}", str(number)) for number in range(100)], ttl=100)
    assert await cache.multi_get([f"k{number}" for number in range(100)]) == [str(number) for number in range(100)]
    await cache.close()


def celery_worker():
    """Results of a worker. Whoever waits for one has subscribed to its channel."""
    import celery
    from celery.contrib.testing.worker import start_worker

    app = celery.Celery("chapter", broker="memory://", backend=f"{URL}/5")
    app.conf.update(result_expires=100, broker_transport_options={"polling_interval": 0.01})

    @app.task
    def add(a, b):
        return a + b

    @app.task(throws=(ValueError,))
    def fail():
        raise ValueError("no heron")

    with start_worker(app, pool="solo", perform_ping_check=False):
        assert add.delay(1, 2).get(timeout=60) == 3
        sums = celery.group(add.s(number, number) for number in range(50))()
        assert sums.get(timeout=60) == [2 * number for number in range(50)] and sums.successful()
        assert celery.chain(add.s(1, 2), add.s(4))().get(timeout=60) == 7
        failed = fail.delay()
        try:
            failed.get(timeout=60)
            raise AssertionError("it has failed")
        except ValueError as error:
            assert str(error) == "no heron" and failed.state == "FAILURE"
        came = []
        results = [add.delay(number, 1) for number in range(20)]
        celery.result.ResultSet(results).join_native(timeout=60, callback=lambda task, sum: came.append((task, sum)))
        assert sorted(came) == sorted((result.id, number + 1) for number, result in enumerate(results))
        assert 0 < app.backend.client.ttl(app.backend.get_key_for_task(results[0].id)) <= 100


def celery_results():
    import celery
    from celery.result import AsyncResult

    app = celery.Celery("chapter", backend=f"{URL}/5")
    app.conf.result_expires = 100
    backend = app.backend
    for number in range(20):
        backend.store_result(f"task-{number}", {"number": number}, "SUCCESS")
    assert [AsyncResult(f"task-{n}", app=app).get(timeout=10) for n in range(20)] == [{"number": n} for n in range(20)]
    backend.mark_as_failure("broken", ValueError("no heron"))
    failed = AsyncResult("broken", app=app)
    assert failed.state == "FAILURE" and str(failed.result) == "no heron"
    assert 0 < backend.client.ttl(backend.get_key_for_task("task-1")) <= 100
    assert AsyncResult("absent", app=app).state == "PENDING"
    failed.forget()
    assert AsyncResult("broken", app=app).state == "PENDING"


CHAPTERS = {
    "django_cache": django_cache,
    "django_cache_of_many": django_cache_of_many,
    "django_sessions": django_sessions,
    "flask_caching": flask_caching,
    "flask_caching_of_many": flask_caching_of_many,
    "aiocache": lambda: asyncio.run(aiocache_of_one()),
    "aiocache_of_many": lambda: asyncio.run(aiocache_of_many()),
    "celery_results": celery_results,
    "celery_worker": celery_worker,
}
for name, chapter in CHAPTERS.items():
    begin = time.monotonic()
    chapter()
    print(name, f"{time.monotonic() - begin:.2f} s")
