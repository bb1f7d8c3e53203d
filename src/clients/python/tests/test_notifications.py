"""Notifications, without the feed."""

import asyncio
import select
import socket
import threading

import pytest
from conftest import PATIENCE
from server import Server

import spindle
from spindle import aio


def test_each_change_is_published_once_in_order(client, name):
    table, others = client.table(name, create=True, codec=spindle.TEXT), client.table(name + "-x", create=True)
    for _ in range(20):
        with client.notifications(name, keys=spindle.TEXT) as changes:
            table.set("a", "1")
            assert changes.get(timeout=PATIENCE) == spindle.Notification("updated", "a")
    with client.notifications(name, keys=spindle.TEXT) as changes:
        assert name in repr(changes)
        with pytest.raises(spindle.Timeout, match="no notification"):
            changes.get(timeout=0.05)
        others.set("a", "1")
        for number in range(100):
            table.set(f"key-{number}", "1")
        table.set("short", "1", ttl=0.05)
        table.delete("key-7")
        found = [next(changes) for _ in range(103)]
        assert [change.key for change in found if change.kind == "updated"] == [*(f"key-{n}" for n in range(100)), "short"]
        assert {change.key for change in found if change.kind == "deleted"} == {"key-7", "short"}
        waiter = threading.Thread(target=lambda: pytest.raises(spindle.Closed, next, changes))
        waiter.start()
        changes.close()
        waiter.join(PATIENCE)
        assert not waiter.is_alive()
    with pytest.raises(spindle.Closed):
        changes.get()


def until_come(changes, last):
    """Waits until these bytes are in the socket, from which nobody reads meanwhile."""
    connection, found = changes._pump.link._socket, b""
    while last not in found:
        assert select.select([connection], [], [], PATIENCE)[0]
        found = connection.recv(1 << 16, socket.MSG_PEEK)


def test_what_has_come_is_there_without_waiting(client, table, name):
    with client.notifications(name) as changes:
        table.set("last", "1")
        until_come(changes, b"last")
        assert changes.get(timeout=0) == spindle.Notification("updated", b"last")
        with pytest.raises(spindle.Timeout):
            changes.get(timeout=0)


KEYS = (b"first", b"\xff", b"last")


def test_a_key_that_the_codec_refuses_loses_no_other(client, table, name):
    with client.notifications(name, keys=spindle.TEXT) as changes:
        for key in KEYS:
            table.set(key, "1")
        until_come(changes, KEYS[-1])
        assert changes.get(timeout=PATIENCE).key == "first"
        with pytest.raises(UnicodeDecodeError):
            changes.get(timeout=PATIENCE)
        assert changes.get(timeout=PATIENCE).key == "last"


def test_a_key_that_the_codec_refuses_loses_no_other_of_asyncio(shared_server, ends, table, name):
    async def body():
        async with aio.Client(shared_server.kv, timeout=PATIENCE, **ends) as client:
            changes = await client.notifications(name, keys=spindle.TEXT)
            for key in KEYS:
                table.set(key, "1")
            until_come(changes, KEYS[-1])
            assert (await changes.get(timeout=5)).key == "first"
            with pytest.raises(UnicodeDecodeError):
                await changes.get(timeout=5)
            assert (await changes.get(timeout=5)).key == "last"

    asyncio.run(body())


def test_a_lost_connection_is_reported_when_it_is_there_again():
    server = Server("--publish")
    try:
        with spindle.Client(server.kv, timeout=PATIENCE, publish=server.endpoints["publish"]) as client:
            changes = client.notifications("t")
            client.table("t", create=True).set("a", "1")
            assert changes.get(timeout=PATIENCE).key == b"a"
            server.kill()
            with pytest.raises(spindle.Timeout):
                changes.get(timeout=0.3)
            server.start()
            assert changes.get(timeout=PATIENCE) == spindle.Notification("missed", None)
            client.table("t", create=True).set("b", "1")
            assert changes.get(timeout=PATIENCE) == spindle.Notification("updated", b"b")
            changes.close()
            server.kill()
            with pytest.raises(spindle.ConnectionRefused):
                client.notifications("t")
            server.start()
    finally:
        server.end()


def test_notifications_of_asyncio(shared_server, ends, name):
    async def body():
        async with aio.Client(shared_server.kv, timeout=PATIENCE, **ends) as client:
            table = await client.table(name, create=True)
            async with await client.notifications(name) as changes:
                await table.set_many({str(number): "1" for number in range(50)})
                found = set()
                async for change in changes:
                    found.add((change.kind, int(change.key)))
                    if len(found) == 50:
                        break
                assert found == {("updated", number) for number in range(50)}
                with pytest.raises(spindle.Timeout):
                    await changes.get(timeout=0.02)
                waiting = asyncio.ensure_future(changes.get())
                await asyncio.sleep(0.01)
            with pytest.raises(spindle.Closed):
                await waiting
            changes = await client.notifications(name)
        with pytest.raises(spindle.Closed):
            await changes.get()

        async with aio.Client(shared_server.kv, publish="127.0.0.1:1") as client:
            with pytest.raises(spindle.ConnectionRefused):
                await client.notifications(name)

    asyncio.run(body())
