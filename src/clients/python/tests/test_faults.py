"""Clients of servers that are slow, killed and started again, and of many threads."""

import asyncio
import os
import signal
import socket
import threading
import time

import pytest
import zmq
from conftest import PATIENCE, again
from server import Server

import spindle


def test_a_late_reply_is_dropped_and_the_client_stays_usable(own_server):
    with spindle.Client(own_server.kv, timeout=PATIENCE) as client:
        table = client.table("t", create=True)
        table.set_many({"a": "1", "b": "2", "c": "3"})
        client.timeout = 0.05
        own_server.pause()
        for _ in range(3):
            with pytest.raises(spindle.Timeout) as raised:
                table.get("a")
            assert isinstance(raised.value, TimeoutError) and own_server.kv in str(raised.value)
        own_server.resume()
        client.timeout = PATIENCE
        # The replies about a come first.
        assert (table["b"], table["c"]) == (b"2", b"3")


def test_a_server_that_is_killed_and_started_again_is_found(own_server):
    with spindle.Client(own_server.kv, timeout=PATIENCE) as client:
        client.table("t", create=True).set("a", "1")
        for _ in range(2):
            own_server.kill()
            with pytest.raises(spindle.Disconnected):
                client.ping()
            own_server.start()
            client.ping()
            assert client.tables() == {}, "it is another start, without tables"
            with pytest.raises(spindle.TableNotFound):
                client.table("t").get("a")
            client.create_table("t")


def test_a_request_on_its_way_fails_at_once_when_its_connection_is_lost(own_server):
    with spindle.Client(own_server.kv, timeout=PATIENCE) as client:
        table = client.table("t", create=True)
        own_server.pause()
        errors = []

        def wait():
            try:
                table.get_many([str(number) for number in range(3000)])
            except spindle.Error as error:
                errors.append(error)

        threads = [threading.Thread(target=wait) for _ in range(4)]
        [thread.start() for thread in threads]
        while len(client._driver._pending) < 4 * 3:
            threading.Event().wait(0.01)
        client.timeout = 10 * PATIENCE
        own_server.kill()
        [thread.join() for thread in threads]
        assert [type(error) for error in errors] == [spindle.Disconnected] * 4
        assert own_server.kv in str(errors[0]) and "may have executed" in str(errors[0])
        assert not client._driver._pending
        own_server.start()
        assert client.tables() == {}


def test_a_call_of_a_single_thread_fails_at_once_too(own_server):
    with spindle.Client(own_server.kv, timeout=PATIENCE) as client:
        table = client.table("t", create=True)
        errors = []

        def read():
            try:
                while True:
                    table.get("a")
            except spindle.Error as error:
                errors.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        own_server.pause()
        # Nothing is answered any more, so what is pending stays so.
        while not client._driver._pending:
            threading.Event().wait(0.01)
        own_server.kill()
        thread.join()
        assert [type(error) for error in errors] == [spindle.Disconnected]
        assert not client._driver._pending and client._driver._leader is None


@pytest.mark.parametrize("kind", ["tcp", "name", "ipc", "curve"])
def test_a_refused_connection_is_reported_at_once(tmp_path, kind):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    endpoint = {"name": f"localhost:{port}", "ipc": f"ipc://{tmp_path}/nobody"}.get(kind, f"127.0.0.1:{port}")
    curve = spindle.Curve(*zmq.curve_keypair()[:1]) if kind == "curve" else None
    begun = time.monotonic()
    with spindle.Client(endpoint, timeout=PATIENCE, curve=curve) as client:
        for _ in range(10):
            with pytest.raises(spindle.ConnectionRefused, match="server running") as raised:
                client.ping()
            assert isinstance(raised.value, ConnectionRefusedError) and isinstance(raised.value, spindle.Disconnected)
        errors = []

        def ping():
            try:
                client.ping()
            except spindle.Error as error:
                errors.append(type(error))

        threads = [threading.Thread(target=ping) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert errors == [spindle.ConnectionRefused] * 8 and not client._driver._pending
    assert time.monotonic() - begun < PATIENCE / 3


def test_an_endpoint_needs_no_scheme_and_a_name_may_have_several_addresses(own_server):
    port = own_server.kv.rpartition(":")[2]
    with spindle.Client(f"localhost:{port}", timeout=PATIENCE) as client:
        client.ping()
        assert client.endpoint == f"tcp://localhost:{port}" and repr(client) == f"<client of tcp://localhost:{port}>"

    async def body():
        async with spindle.aio.Client(f"localhost:{port}", timeout=PATIENCE) as client:
            await client.ping()

    asyncio.run(body())


def test_a_port_that_speaks_no_zmtp_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"

        def answer():
            for _ in range(2):
                connection, _ = listener.accept()
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.close()

        answerer = threading.Thread(target=answer)
        answerer.start()
        with spindle.Client(endpoint, timeout=PATIENCE) as client:
            for _ in range(2):
                with pytest.raises(spindle.Malformed, match="HTTP"):
                    client.ping()
        answerer.join()


def test_more_than_the_system_takes_at_once_is_sent_in_pieces(own_server):
    with spindle.Client(own_server.kv, timeout=PATIENCE) as client:
        table = client.table("t", create=True)
        own_server.pause()
        elements = {f"{number:06}": bytes(1000) for number in range(20_000)}
        threads = [threading.Thread(target=table.set_many, args=(elements,)) for _ in range(3)]
        [thread.start() for thread in threads]
        while not client._driver._link._out:
            threading.Event().wait(0.01)
        own_server.resume()
        [thread.join() for thread in threads]
        assert len(table) == 20_000 and table.get_many(elements) == elements


def test_a_request_without_a_server_is_never_executed(own_server):
    with spindle.Client(own_server.kv, timeout=PATIENCE) as client:
        client.ping()
        own_server.kill()
        with pytest.raises(spindle.Disconnected):
            client.ping()
        with pytest.raises(spindle.ConnectionRefused):
            client.create_table("ghost")
        own_server.start()
        client.ping()
        assert client.tables() == {}


def test_a_client_may_be_there_before_its_server(own_server):
    own_server.kill()
    with spindle.Client(own_server.kv, timeout=PATIENCE) as client:
        starter = threading.Thread(target=own_server.start)
        starter.start()
        again(client.ping, spindle.ConnectionRefused)
        starter.join()


def test_threads_share_a_client_and_each_gets_its_own_replies(client, name):
    table = client.table(name, create=True)
    faults = []

    def work(own):
        try:
            for number in range(150):
                key = f"{own}-{number % 7}"
                table.set(key, f"{own}:{number}")
                assert table.get(key) == f"{own}:{number}".encode()
                assert table.get_many([key, "absent"]) == {key: f"{own}:{number}".encode()}
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(own,)) for own in range(24)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not faults and len(table) == 24 * 7


def test_threads_that_time_out_disturb_no_other(own_server):
    with spindle.Client(own_server.kv, timeout=PATIENCE) as client:
        table = client.table("t", create=True)
        table["a"] = "1"
        own_server.pause()
        client.timeout = 0.05
        late = []

        def impatient():
            for _ in range(4):
                try:
                    table.get("a")
                except spindle.Timeout:
                    late.append(1)

        threads = [threading.Thread(target=impatient) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert len(late) == 32
        client.timeout = PATIENCE
        threads = [threading.Thread(target=lambda: late.append(table["a"])) for _ in range(8)]
        [thread.start() for thread in threads]
        own_server.resume()
        [thread.join() for thread in threads]
        assert late[32:] == [b"1"] * 8


def test_close_ends_the_calls_that_wait_and_later_ones(own_server):
    client = spindle.Client(own_server.kv, timeout=PATIENCE)
    table = client.table("t", create=True)
    own_server.pause()
    errors = []

    def wait():
        try:
            table.get("a")
        except spindle.Error as error:
            errors.append(type(error))

    threads = [threading.Thread(target=wait) for _ in range(5)]
    [thread.start() for thread in threads]
    while len(client._driver._pending) < 5:
        threading.Event().wait(0.01)
    client.close()
    [thread.join() for thread in threads]
    assert errors == [spindle.Closed] * 5
    with pytest.raises(spindle.Closed, match="closed"):
        table.get("a")
    client.close()


def test_a_client_of_the_parent_says_so_after_a_fork(client, name, shared_server):
    table = client.table(name, create=True)
    table["a"] = "1"
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            try:
                table.get("a")
            except spindle.Closed as error:
                os.write(write, str(error).encode())
            assert client._driver._link._socket is None, "the child has no copy of the parent's connection"
            with spindle.Client(shared_server.kv, timeout=PATIENCE) as own:
                os.write(write, b"|" + own.table(name)["a"])
            os._exit(0)
        finally:
            os._exit(1)
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    with open(read) as answer:
        message, value = answer.read().split("|")
    assert "fork" in message and value == "1"
    assert table["a"] == b"1", "the parent continues"


def test_notifications_of_the_parent_say_so_after_a_fork(client, name):
    changes = client.notifications(name)
    waiter = threading.Thread(target=lambda: pytest.raises(spindle.Closed, changes.get))
    waiter.start()
    while not changes._lock.locked():
        threading.Event().wait(0.001)
    child = os.fork()
    if child == 0:
        # It ends also if it hangs.
        signal.alarm(10)
        try:
            changes.get(timeout=0)
        except spindle.Closed:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    changes.close()
    waiter.join(PATIENCE)
    assert not waiter.is_alive()


@pytest.fixture
def interrupts():
    """A process that was started in the background may ignore them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_ends_a_call_and_leaves_the_client_usable(own_server, interrupts):
    with spindle.Client(own_server.kv, timeout=PATIENCE) as client:
        table = client.table("t", create=True)
        table["a"] = "1"
        own_server.pause()

        def interrupt():
            while not client._driver._pending:
                threading.Event().wait(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            table.get("a")
        interrupter.join()
        client._driver._is_inside = True
        with client._driver._lock:
            client._driver._repair()
        assert not client._driver._link.is_up, "an interrupt within the connection ends it"
        own_server.resume()
        assert table["a"] == b"1" and not client._driver._pending


def test_half_a_request_is_refused_whole(client, name):
    table = client.table(name, create=True, codec=spindle.Codec(lambda value: value, bytes))
    table.set_many({"a": b"1", "b": b"2"})
    with pytest.raises(TypeError):
        table["a"] = None
    with pytest.raises(TypeError):
        table.set_many({"a": b"3", "b": None})
    with pytest.raises(TypeError):
        client._driver.call([b"\x11", name.encode(), b"a", None], 1.0)
    with pytest.raises(TypeError):
        client._driver.call([b"\x03", name.encode(), b"a", None], 1.0)
    assert table.get_many(["a", "b"]) == {"a": b"1", "b": b"2"}


def test_a_full_server_refuses_by_type():
    server = Server("--max-memory", "8388608", "--max-tables", "2")
    try:
        with spindle.Client(server.kv, timeout=PATIENCE) as client:
            table = client.table("t", create=True)
            with pytest.raises(spindle.OutOfMemory):
                for start in range(0, 1_000_000, 5000):
                    table.set_many({str(start + number): bytes(1000) for number in range(5000)})
            client.create_table("u")
            with pytest.raises(spindle.TooManyTables):
                client.create_table("v")
    finally:
        server.end()


def test_an_endpoint_that_is_none_is_reported():
    for wrong in ("nonsense", "tcp://127.0.0.1", "tcp://127.0.0.1:0", "tcp://127.0.0.1:99999", "ipc://", "udp://a:1"):
        with pytest.raises(spindle.Disconnected, match="should look like"):
            spindle.Client(wrong)
