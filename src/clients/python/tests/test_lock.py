"""Locks: one holder, whoever shares the object, and nothing that stays behind."""

import asyncio
import os
import random
import threading
import time

import pytest
from conftest import PATIENCE
from server import Server

import spindle
from spindle import aio


def test_threads_that_share_a_lock_exclude_each_other(table):
    lock, inside, versions = table.lock("x", ttl=10), [], []

    def work():
        for _ in range(5):
            with lock:
                inside.append(1)
                assert len(inside) == 1
                versions.append(lock.version)
                threading.Event().wait(0.005)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(versions) == 15 and versions == sorted(set(versions)) and not lock.locked()


def test_a_holder_does_not_get_it_twice_and_nobody_else_releases_it(table):
    lock = table.lock("x")
    with pytest.raises(spindle.Error, match="not held by its caller"):
        lock.release()
    assert lock.acquire() and lock.locked() and "held" in repr(lock)
    with pytest.raises(spindle.Error, match="wait for itself"):
        lock.acquire(timeout=1)
    others = []

    def other():
        others.append(lock.acquire(blocking=False))
        others.append(lock.acquire(timeout=0.05))
        try:
            lock.release()
        except spindle.Error as error:
            others.append(str(error))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert others[:2] == [False, False] and "not held by its caller" in others[2]
    second = table.lock("x", timeout=0.05)
    begun = time.monotonic()
    assert not second.acquire() and not second.acquire(blocking=False) and not second.acquire(timeout=0.1)
    assert time.monotonic() - begun < 1
    with pytest.raises(ValueError):
        second.acquire(blocking=False, timeout=1)
    lock.release()
    assert not lock.locked() and "not held" in repr(lock)
    assert second.acquire() and second.version > lock.version
    second.release()


def test_a_look_at_the_lock_of_another_client_is_one_request(client, table, monkeypatch):
    requests, call = [], client._driver.call
    with table.lock("x", ttl=60):
        monkeypatch.setattr(client._driver, "call", lambda *request: requests.append(request) or call(*request))
        assert not table.lock("x").acquire(blocking=False)
        assert len(requests) == 1


def test_a_lock_of_the_parent_says_so_after_a_fork(table):
    lock, held, released = table.lock("x"), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            released.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(PATIENCE)
    child = os.fork()
    if child == 0:
        try:
            lock.acquire(timeout=PATIENCE)
        except spindle.Closed:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    released.set()
    thread.join()


def test_a_lock_that_is_used_again_is_extended_again(table):
    lock = table.lock("x", ttl=0.6)
    for _ in range(2):
        with lock:
            first = table.entry("x").version
            while table.entry("x").version < first + 3:
                threading.Event().wait(0.02)
            assert not lock.is_lost and not table.lock("x").acquire(blocking=False)
    assert "x" not in table


def test_a_lock_is_lost_as_soon_as_its_ttl_has_ended():
    server = Server()
    try:
        with spindle.Client(server.kv, timeout=PATIENCE) as client:
            lock = client.table("locks", create=True).lock("x", ttl=0.5)
            lock.acquire()
            server.pause()
            threading.Event().wait(0.3)
            asked = time.monotonic()
            while not lock.is_lost:
                assert time.monotonic() < asked + 5
            assert time.monotonic() >= lock._state.until and "lost" in repr(lock)
            # The server counts from the arrival of a request.
            threading.Event().wait(1)
            server.resume()
            with pytest.raises(spindle.LockLost):
                lock.release()
            assert lock.is_lost
            with lock:
                assert not lock.is_lost
    finally:
        server.end()


def test_a_lock_that_was_taken_without_a_reply_is_found_again():
    server = Server()
    try:
        with spindle.Client(server.kv, timeout=PATIENCE) as client:
            lock = client.table("locks", create=True).lock("x", ttl=60)
            server.pause()
            client.timeout = 0.05
            with pytest.raises(spindle.Timeout):
                lock.acquire()
            client.timeout = PATIENCE
            server.resume()
            assert lock.acquire(blocking=False)
            lock.release()
            assert not lock.locked()
    finally:
        server.end()


def test_a_lock_whose_table_goes_is_lost(table, client, name):
    with pytest.raises(spindle.LockLost):
        with table.lock("x", ttl=0.3) as lock:
            table.drop()
            while not lock.is_lost:
                threading.Event().wait(0.01)
    client.create_table(name)


def test_tasks_that_share_a_lock_exclude_each_other(shared_server, name):
    async def body():
        async with aio.Client(shared_server.kv, timeout=PATIENCE) as client:
            table = await client.table(name, create=True)
            lock, inside, versions = table.lock("x", ttl=10), [], []

            async def work():
                for _ in range(5):
                    async with lock:
                        inside.append(1)
                        await asyncio.sleep(0.002)
                        assert len(inside) == 1
                        versions.append(lock.version)
                        inside.pop()

            await asyncio.gather(*(work() for _ in range(3)))
            assert len(versions) == 15 and versions == sorted(set(versions)) and not await lock.locked()
            async with lock:
                with pytest.raises(spindle.Error, match="wait for itself"):
                    await lock.acquire()
                assert not await asyncio.ensure_future(lock.acquire(timeout=0.02))
                with pytest.raises(spindle.Error, match="not held by its caller"):
                    await asyncio.ensure_future(lock.release())
            assert await asyncio.wait_for(lock.acquire(), PATIENCE), "in a task of its own"
            assert not await lock.acquire(blocking=False)
            await lock.release()
            with pytest.raises(spindle.Error, match="not held by its caller"):
                await lock.release()

    asyncio.run(body())


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_task_that_is_cancelled_anywhere_leaves_no_lock(shared_server, name, is_shared):
    async def body():
        async with aio.Client(shared_server.kv, timeout=PATIENCE) as client:
            table = await client.table(name, create=True)
            shared = table.lock("shared", ttl=30)

            async def use(number):
                async with shared if is_shared else table.lock(f"lock-{number}", ttl=30):
                    await asyncio.sleep(random.uniform(0, 0.002))

            async def one(number):
                task = asyncio.ensure_future(use(number))
                await asyncio.sleep(random.uniform(0, 0.004))
                task.cancel()
                await asyncio.wait([task])

            for number in range(150):
                await one(number)
            await asyncio.gather(*(one(number) for number in range(150, 250)))
            # Also while the event loop gets no reply: step by step.
            for steps in range(60):
                task = asyncio.ensure_future(use(1000 + steps))
                for _ in range(steps % 20):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
            assert await table.size() == 0
            assert await shared.acquire(timeout=1)
            await shared.release()

    asyncio.run(body())
