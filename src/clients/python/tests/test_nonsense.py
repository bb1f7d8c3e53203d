"""Servers that answer nonsense, half of an answer, or without an end."""

import asyncio
import socket
import struct
import threading

import pytest
import zmq
from conftest import PATIENCE
from fake import GREETING, Fake, ready

import spindle
from spindle import _copy, _feed, _zmtp, aio


def request_of(connection):
    """The frames of the first request."""
    decoder, data = _zmtp.Decoder(), connection.recv(64, socket.MSG_WAITALL)
    while True:
        data = connection.recv(1 << 16)
        if not data:
            raise OSError("the client is gone")
        for message in decoder.feed(data):
            return message


def until_closed(connection):
    while connection.recv(1 << 16):
        pass


def test_a_server_that_answers_nonsense_is_reported():
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    endpoint = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
    replies = [[b"\x01", b"too", b"many"], [b"\x00"], [b"\x07", b"?"], [], [b"\x00", b"NEW REASON"]]

    def answer():
        for reply in replies:
            routing_id, request_id, empty, *_ = router.recv_multipart()
            router.send_multipart([routing_id, b"another id", empty, b"\x01"])
            router.send_multipart([routing_id, request_id, empty, *reply])

    thread = threading.Thread(target=answer)
    thread.start()
    with spindle.Client(endpoint, timeout=PATIENCE) as client:
        for _ in range(4):
            with pytest.raises(spindle.Malformed):
                client.ping()
        with pytest.raises(spindle.Refused, match="NEW REASON"):
            client.ping()
    thread.join()
    context.destroy(0)


@pytest.mark.parametrize(
    "answer",
    [
        bytes(range(255, -1, -1)),
        b"\x08\x01x",
        b"\x05\x01x",
        b"\x02" + (1 << 62).to_bytes(8, "big"),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_bytes_that_are_no_frames_end_the_connection_and_not_the_client(answer):
    turns = iter([answer, None, answer, None])

    def behave(connection):
        reply, nonsense = request_of(connection), next(turns)
        connection.sendall(nonsense or _zmtp.encode([*reply[:2], b"\x01"]))
        until_closed(connection)

    with Fake(behave) as server, spindle.Client(server.endpoint, timeout=PATIENCE) as client:
        for _ in range(2):
            with pytest.raises(spindle.Disconnected, match="may have executed"):
                client.ping()
            client.ping()
            client._driver._link.interrupt()


def test_half_an_answer_is_none():
    def behave(connection):
        answer = _zmtp.encode([*request_of(connection)[:2], b"\x01", b"v" * 1000])
        connection.sendall(answer[: len(answer) // 2])

    with Fake(behave) as server:
        with spindle.Client(server.endpoint, timeout=PATIENCE) as client:
            with pytest.raises(spindle.Disconnected):
                client.table("t").get("a")

        async def body():
            async with aio.Client(server.endpoint, timeout=PATIENCE) as client:
                with pytest.raises(spindle.Disconnected):
                    await (await client.table("t")).get("a")

        asyncio.run(body())


def test_a_message_without_an_end_is_not_kept(monkeypatch):
    monkeypatch.setattr(_zmtp, "MESSAGE_BYTES_MAX", 1 << 20)

    def behave(connection):
        request_of(connection)
        while True:
            connection.sendall(b"\x01\xff" + bytes(255))

    with Fake(behave) as server, spindle.Client(server.endpoint, timeout=PATIENCE) as client:
        with pytest.raises(spindle.Disconnected, match="longer"):
            client.ping()


def test_pings_without_end_do_not_fill_the_memory():
    ping = b"\x04\xff\x04PING\0\1" + bytes(248)

    def behave(connection):
        identity = request_of(connection)[:2]
        # Many at once: both ends are threads of one interpreter, which take turns at each call.
        for _ in range(400):
            connection.sendall(ping * 100)
        connection.sendall(_zmtp.encode([*identity, b"\x01"]))
        until_closed(connection)

    with Fake(behave) as server, spindle.Client(server.endpoint, timeout=PATIENCE) as client:
        client.ping()
        assert len(client._driver._link._out) <= 2 << 20
    assert len(_zmtp.pong(ping[2:])) == 2 + 5 + 16, "no more comes back than ZMTP allows"


def test_a_handshake_that_is_none_is_reported():
    for handshake, kind in (
        (GREETING + _zmtp.encode([b"early"]), spindle.Malformed),
        (GREETING + ready(b"PUB"), spindle.Malformed),
        (GREETING + b"\x04\x06\x05ERROR", spindle.Denied),
    ):
        with Fake(until_closed, handshake) as server, spindle.Client(server.endpoint, timeout=PATIENCE) as client:
            with pytest.raises(kind):
                client.ping()


def test_a_connection_that_brings_nothing_is_made_again_after_longer_pauses():
    """Such a server accepts, and closes at once. A mirror tries for ever, but not without a pause."""
    with Fake(lambda connection: None, GREETING + ready(b"XPUB")) as feed:
        with Fake(lambda connection: None) as server, spindle.Client(server.endpoint, feed=feed.endpoint) as client:
            mirror = client.mirror("t")
            with pytest.raises(spindle.Timeout):
                mirror.wait_exact(1.0)
            assert 2 < feed.accepted < 100 and 2 < server.accepted < 100


def test_a_feed_of_nonsense_is_reported_and_asked_again_after_a_pause():
    def behave(connection):
        connection.sendall(_zmtp.encode([_feed.topic_of(b"t"), b"nonsense"]))
        until_closed(connection)

    with Fake(behave, GREETING + ready(b"XPUB")) as feed, Fake(until_closed) as server:
        with spindle.Client(server.endpoint, feed=feed.endpoint) as client:
            mirror = client.mirror("t")
            with pytest.raises(spindle.Malformed):
                mirror.wait_exact(PATIENCE)
            while feed.accepted < 3:
                threading.Event().wait(0.01)
            assert not mirror.exact and len(mirror) == 0


def payload(form, *changes):
    """A message of changes: cause, version, deadline, key, value each."""
    body = b"".join(struct.pack(">BQQH", *head, len(key)) + key + struct.pack(">I", len(value)) + value
                    for *head, key, value in changes)
    return struct.pack(">BBQQQH", form, 1, 7, 1, 3, len(changes)) + body


def test_a_feed_of_another_format_is_refused_with_the_side_that_is_older():
    with pytest.raises(spindle.Malformed, match="format 1.*update the server"):
        _feed.decode(payload(1))
    with pytest.raises(spindle.Malformed, match="format 3.*update this package"):
        _feed.decode(payload(3))


def test_of_a_cause_that_is_not_known_bit_7_counts():
    key = b"k" * 4096
    message = payload(2, (0x87, 1, 9, key, b"1"), (0xFF, 2, 0, b"", b"2"), (0x7F, 3, 0, b"a", b""))
    changes = _feed.decode(message).changes
    assert changes == [(0x87, 1, 9, key, b"1"), (0xFF, 2, 0, b"", b"2"), (0x7F, 3, 0, b"a", b"")]
    assert [_feed.cause_name(change[0]) for change in changes] == ["increment", "set", "delete"]
    copy = _copy.TableCopy()
    for change in changes:
        copy.merge_change(change, False)
    assert sorted(copy.known) == [b"", key]


def test_a_reply_of_the_wrong_shape_is_reported():
    replies = iter([[b"\x01", b"no JSON"], [b"\x01", b"no number", bytes(8)], [b"\x01", b"1"], [b"\x01"] * 4])

    def behave(connection):
        while True:
            connection.sendall(_zmtp.encode([*request_of(connection)[:2], *next(replies)]))
            until_closed(connection)

    with Fake(behave) as server, spindle.Client(server.endpoint, timeout=PATIENCE) as client:
        table = client.table("t")
        for call in (client.stats, lambda: table.incr("a"), lambda: table.incr("a"), lambda: table.get_many(["a"])):
            with pytest.raises(spindle.Malformed):
                call()
            client._driver._link.interrupt()


@pytest.mark.parametrize("answer", [b"x" * 5_000_000, b"0001", b"00000000000000000001 99 x", b"\x15\x03\x03", b"OK\n"])
def test_an_answer_that_is_none_of_jobs_is_reported(answer):
    def behave(connection):
        connection.recv(1 << 16)
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)
        until_closed(connection)

    with Fake(behave, b"") as server:
        with spindle.Client(jobs=f"127.0.0.1:{server.port}", timeout=PATIENCE) as client:
            mail = client.jobs("mail")
            for call in (lambda: mail.add("x"), mail.lend, lambda: mail.ack("1")):
                with pytest.raises(spindle.Malformed):
                    call()

        async def body():
            async with aio.Client(jobs=f"127.0.0.1:{server.port}", timeout=PATIENCE) as client:
                for call in (client.jobs("mail").add("x"), client.jobs("mail").lend()):
                    with pytest.raises(spindle.Malformed):
                        await call

        asyncio.run(body())
