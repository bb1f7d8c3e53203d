"""Events over HTTP."""

import asyncio

import pytest
from conftest import PATIENCE
from fake import Fake
from server import Guarded

import spindle
from spindle import aio


def test_events_are_made_and_read(client):
    events = client.events
    first, second = events.create(), events.create()
    assert second.id > first.id and first.value and events.get(first.id) == first
    pending = events.defer()
    assert events.get(pending) == spindle.Event(pending, None) and events.count() == pending
    assert events.get(pending + 1) is None
    events.health()
    assert "events" in repr(events)
    with pytest.raises(TypeError, match="whole number"):
        events.get("1")


def test_events_of_asyncio(shared_server, ends):
    async def body():
        async with aio.Client(shared_server.kv, timeout=PATIENCE, **ends) as client:
            made = await asyncio.gather(*(client.events.create() for _ in range(10)))
            assert len({event.id for event in made}) == 10
            assert [await client.events.get(event.id) for event in made] == made
            await client.events.health()
        async with aio.Client("localhost:1", timeout=PATIENCE) as client:
            for address in ("localhost:1", "127.0.0.1:1"):
                client._events_address = address
                with pytest.raises(spindle.ConnectionRefused):
                    await client.events.count()

    asyncio.run(body())


def test_a_server_of_events_that_is_none_is_reported(shared_server):
    with spindle.Client(shared_server.kv, events="127.0.0.1:1", timeout=PATIENCE) as client:
        with pytest.raises(spindle.ConnectionRefused, match="--events"):
            client.events.create()
    answers = [
        (b"", spindle.Disconnected),
        (b"nonsense", spindle.Malformed),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{}", spindle.Malformed),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", spindle.Malformed),
        (b'HTTP/1.1 503 No\r\ncontent-length: 15\r\n\r\n{"error":"full"}'[:-1] + b"}", spindle.Malformed),
        (b'HTTP/1.1 503 No\r\ncontent-length: 16\r\n\r\n{"error":"full"}', spindle.Unavailable),
        (b'HTTP/1.1 418 No\r\ncontent-length: 15\r\n\r\n{"error":"tea"}', spindle.BadRequest),
    ]
    for answer, error in answers:

        def behave(connection, answer=answer):
            connection.recv(4096)
            connection.sendall(answer)

        with Fake(behave, b"") as server:
            address = f"127.0.0.1:{server.port}"
            with spindle.Client(shared_server.kv, events=address, timeout=PATIENCE) as client:
                with pytest.raises(error):
                    client.events.count()


@pytest.mark.parametrize("tls", [(), Guarded.TLS])
def test_events_are_for_users_who_may(tls):
    server = Guarded("--events", *tls)
    try:
        options = {"events": server.endpoints["events"], "timeout": PATIENCE, **({"tls": Guarded.PEM} if tls else {})}
        with spindle.Client(server.kv, **server.login("root"), **options) as root:
            assert root.events.create().id == 1
        for login in (server.login("ada"), {"user": "root", "password": "wrong"}, {}):
            with spindle.Client(server.kv, **login, **options) as client:
                with pytest.raises(spindle.Denied):
                    client.events.create()
    finally:
        server.end()
