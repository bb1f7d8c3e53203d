"""The methods of the clients for asyncio."""

import asyncio
import inspect

import pytest
from conftest import PATIENCE

import spindle
from spindle import aio


def run(server, body, **options):
    async def main():
        async with aio.Client(server.kv, **{"timeout": PATIENCE, **options}) as client:
            return await body(client)

    return asyncio.run(main())


def test_each_method_of_the_clients_for_threads_is_there():
    for sync, tasks in (
        (spindle.Client, aio.Client),
        (spindle.Table, aio.Table),
        (spindle.Lock, aio.Lock),
        (spindle.Mirror, aio.Mirror),
        (spindle.Tasks, aio.Tasks),
        (spindle.Task, aio.Task),
        (spindle.Jobs, aio.Jobs),
        (spindle.Job, aio.Job),
        (spindle.Worker, aio.Worker),
        (spindle.Notifications, aio.Notifications),
        (spindle.Events, aio.Events),
    ):
        public = {name for name, _ in inspect.getmembers(sync) if not name.startswith("_")}
        assert public <= {name for name, _ in inspect.getmembers(tasks)}
        for name in public:
            method = getattr(sync, name)
            if inspect.isfunction(method):
                assert list(inspect.signature(method).parameters) == list(
                    inspect.signature(getattr(tasks, name)).parameters
                )


def test_elements(shared_server, name):
    async def body(client):
        table = await client.table(name, create=True, codec=spindle.TEXT, keys=spindle.TEXT)
        await table.set("heron", "grey", ttl=60)
        assert await table.get("heron") == await table.item("heron") == "grey"
        assert await table.get("stork") is None and await table.get("stork", 1) == 1
        assert await table.has("heron") and not await table.has("stork")
        entry = await table.entry("heron")
        assert entry.value == "grey" and 59 < entry.ttl <= 60
        version = await table.cas("heron", entry.version, "white")
        with pytest.raises(spindle.VersionMismatch) as raised:
            await table.cas("heron", entry.version, "black")
        assert raised.value.current == version
        assert await table.touch("heron", 5) and await table.get_and_touch("heron", 9) == "white"
        assert not await table.add("heron", "x") and await table.pop("heron") == "white"
        with pytest.raises(KeyError):
            await table.item("heron")
        assert not await table.delete("heron")
        copy = await client.table(name + "-copy", create=True, codec=spindle.TEXT)
        assert await copy.restore("heron", "grey", entry.version, entry.ttl)
        assert not await copy.restore("heron", "white", entry.version)
        assert (await copy.entry("heron")).version == entry.version
        await copy.drop()
        assert [await table.rate_limit("n", 1, 60) for _ in range(2)] == [True, False]
        await client.ping()
        assert await client.stats()

    run(shared_server, body)


def test_many_and_scans(shared_server, name):
    async def body(client):
        table = await client.table(name, create=True, keys=spindle.TEXT)
        elements = {f"key-{number}": b"%d" % number for number in range(20_000)}
        await table.set_many(elements)
        assert await table.size() == 20_000 == (await client.tables())[name]
        assert await table.get_many(elements) == elements
        assert {key async for key in table.scan("key-1")} == {key for key in elements if key.startswith("key-1")}
        assert {key: value async for key, value in table.items()} == elements
        assert await table.delete_many(elements) == 20_000
        await table.drop()
        with pytest.raises(spindle.TableNotFound):
            await table.size()

    run(shared_server, body)


def test_tasks_share_a_client(shared_server, name):
    async def body(client):
        table = await client.table(name, create=True)

        async def work(own):
            for number in range(20):
                await table.set(str(own), f"{own}:{number}")
                assert await table.get(str(own)) == f"{own}:{number}".encode()

        await asyncio.gather(*(work(own) for own in range(100)))
        assert await table.size() == 100

    run(shared_server, body)


def test_locks_and_caches(shared_server, name):
    async def body(client):
        table = await client.table(name, create=True, codec=spindle.JSON)
        holders, computed = [], []

        async def hold():
            async with table.lock("door", ttl=30) as lock:
                holders.append(lock.version)
                await asyncio.sleep(0)

        await asyncio.gather(*(hold() for _ in range(5)))
        assert holders == sorted(set(holders)) and len(holders) == 5
        with pytest.raises(spindle.LockLost):
            async with table.lock("door", ttl=60):
                await table.set("door", "another")

        @table.cached(ttl=60)
        async def double(number):
            computed.append(number)
            await asyncio.sleep(0.02)
            return number * 2

        assert await asyncio.gather(*(double(21) for _ in range(10))) == [42] * 10
        assert computed == [21]

    run(shared_server, body)


def test_a_late_reply_is_dropped_and_a_cancelled_task_disturbs_nobody(own_server):
    async def body(client):
        table = await client.table("t", create=True)
        await table.set_many({"a": "1", "b": "2"})
        own_server.pause()
        client.timeout = 0.05
        with pytest.raises(spindle.Timeout):
            await table.get("a")
        client.timeout = PATIENCE
        cancelled = asyncio.ensure_future(table.get("a"))
        await asyncio.sleep(0)
        cancelled.cancel()
        own_server.resume()
        assert await table.get("b") == b"2" and not client._driver._pending

    run(own_server, body)


def test_a_server_that_is_killed_and_started_again_is_found(own_server):
    async def body(client):
        own_server.kill()
        begun = asyncio.get_running_loop().time()
        for _ in range(20):
            with pytest.raises(spindle.ConnectionRefused):
                await client.ping()
        errors = await asyncio.gather(*(client.ping() for _ in range(20)), return_exceptions=True)
        assert {type(error) for error in errors} == {spindle.ConnectionRefused}
        assert asyncio.get_running_loop().time() - begun < 2
        own_server.start()
        return await client.ping()

    run(own_server, body)


def test_a_request_on_its_way_fails_at_once_when_its_connection_is_lost(own_server):
    async def body(client):
        table = await client.table("t", create=True)
        own_server.pause()
        waiting = [asyncio.ensure_future(table.get("a")) for _ in range(5)]
        await asyncio.sleep(0)
        client.timeout = 10 * PATIENCE
        own_server.kill()
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(error, spindle.Disconnected)
        own_server.start()
        assert await client.tables() == {} and not client._driver._pending

    run(own_server, body)


def test_close_ends_what_waits(own_server):
    async def body(client):
        own_server.pause()
        waiting = asyncio.ensure_future(client.ping())
        await asyncio.sleep(0.05)
        await client.close()
        with pytest.raises(spindle.Closed):
            await waiting
        with pytest.raises(spindle.Closed):
            await client.ping()

    run(own_server, body)
