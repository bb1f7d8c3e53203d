"""Celery's transport, with kombu alone: exchanges, queues, messages and their leases."""

import os
import socket
import threading
from datetime import datetime, timedelta, timezone

import pytest
from conftest import PATIENCE, wait_for_extensions
from server import Guarded, Server, nowhere

import spindle

celery = pytest.importorskip("celery")
import kombu  # noqa: E402
from kombu import Connection, Consumer, Exchange, Producer, Queue  # noqa: E402
from kombu.exceptions import ChannelError, OperationalError  # noqa: E402

import spindle.celery  # noqa: E402, F401
from spindle._link import Security  # noqa: E402
from spindle._queue_records import LentTask  # noqa: E402
from spindle.celery import messages  # noqa: E402
from spindle.celery.bindings import Bindings  # noqa: E402
from spindle.celery.names import Names  # noqa: E402
from spindle.celery.puller import Puller  # noqa: E402
from spindle.celery.session import Session  # noqa: E402
from spindle.celery.subscriptions import Held, Subscription  # noqa: E402


@pytest.fixture(scope="module")
def server():
    server = Server("--tasks", "--publish")
    yield server
    server.end()


@pytest.fixture(scope="module")
def client(server):
    with spindle.Client(server.kv, timeout=PATIENCE, tasks=server.endpoints["tasks"]) as client:
        yield client


def connect(server, virtual_host="", **options):
    options = {"lease": 2, **options}
    return Connection(f"spindle://{server.endpoints['tasks'][6:]}/{virtual_host}", transport_options=options)


@pytest.fixture
def connection(server):
    with connect(server) as connection:
        yield connection


def wait_for(condition):
    while not condition():
        threading.Event().wait(0.01)


def received(connection, queue, count, no_ack=True, **consumer):
    """So many messages of a queue."""
    found = []
    with Consumer(connection.channel(), [queue], callbacks=[lambda body, message: found.append(message)], no_ack=no_ack, **consumer):
        while len(found) < count:
            connection.drain_events(timeout=PATIENCE)
    return found


def test_messages_are_published_acknowledged_and_rejected(connection, client, name):
    queue, own = connection.SimpleQueue(name), client.queue(name)
    for body in ({"to": "ada"}, b"\x00\xff\n bytes", "text\nof two lines"):
        queue.put(body)
    first, second, third = (queue.get(timeout=PATIENCE) for _ in range(3))
    assert (first.payload, bytes(second.body), third.payload) == ({"to": "ada"}, b"\x00\xff\n bytes", "text\nof two lines")
    assert not first.delivery_info["redelivered"]
    first.ack()
    second.reject()
    third.requeue()
    again = queue.get(timeout=PATIENCE)
    assert again.payload == "text\nof two lines" and again.delivery_info["redelivered"]
    again.ack()
    with pytest.raises(queue.Empty):
        queue.get(block=False)
    wait_for(lambda: own.counts().lent == 0)
    assert [task.reason for task in own.browse("dead")] == ["rejected"]
    assert (own.counts().ready, own.counts().times_done) == (0, 2)


def test_a_publish_that_kombu_repeats_is_not_doubled(server, client, name):
    """The server executes a request whose reply is lost, twice."""
    with connect(server) as connection:
        producer = connection.Producer()
        session, lost = connection.transport.session, []
        run = type(session).run

        def losing(self, command, seconds=0):
            result = run(self, command, seconds)
            if command[0][0][0] == 0x21 and name.encode() in command[0][0] and len(lost) < 2:
                lost.append(result)
                raise spindle.Disconnected("the reply is lost")
            return result

        type(session).run = losing
        try:
            producer.publish("once", routing_key=name, retry=True, retry_policy={"interval_start": 0}, task_id="t1")
        finally:
            type(session).run = run
        assert lost == [[True], [False]] and client.queue(name).counts().ready == 1
        producer = connection.Producer()
        producer.publish("twice", routing_key=name, task_id="t1")
        assert client.queue(name).counts().ready == 2, "another publish is another message, with the same task id too"


def test_a_message_that_is_published_again_is_another_one(connection, client, name):
    queue = connection.SimpleQueue(name)
    queue.put("first")
    message = queue.get(timeout=PATIENCE)
    properties = {key: value for key, value in message.properties.items() if key not in ("priority", "delivery_mode")}
    for _ in range(2):
        connection.Producer().publish(message.payload, routing_key=name, **properties)
    message.ack()
    assert [queue.get(timeout=PATIENCE).payload for _ in range(2)] == ["first", "first"]


def test_the_highest_priority_goes_first_and_equal_ones_in_order(connection, name):
    producer = connection.Producer()
    for priority in (None, 0, 5, 9, 5, 255, 1):
        producer.publish(f"{priority}", routing_key=name, priority=priority)
    bodies = [message.payload for message in received(connection, Queue(name, no_declare=True), 7)]
    assert bodies == ["255", "9", "5", "5", "1", "None", "0"]


def test_a_task_with_an_eta_is_delayed_by_the_server_and_never_expires_there(connection, client, name):
    producer, now = connection.Producer(), datetime.now(timezone.utc)
    soon, later = (now + timedelta(seconds=seconds) for seconds in (3, 1000))
    for eta in (soon.isoformat(), later.isoformat(), later.replace(tzinfo=None).isoformat(), None):
        headers = {"task": "add", "id": "x", "eta": eta, "expires": now.isoformat()}
        producer.publish(f"{eta}", routing_key=name, headers=headers, expiration=0)
    delayed = {task.left > 100 for task in client.queue(name).browse("delayed")}
    assert delayed == {True, False}
    bodies = [message.payload for message in received(connection, Queue(name, no_declare=True), 3)]
    assert bodies == [later.replace(tzinfo=None).isoformat(), "None", soon.isoformat()]


def test_other_messages_expire(connection, client, name):
    producer = connection.Producer()
    producer.publish("short", routing_key=name, expiration=0)
    producer.publish("long", routing_key=name, expiration=1000)
    assert [message.payload for message in received(connection, Queue(name, no_declare=True), 1)] == ["long"]
    message = {"properties": {"delivery_mode": 1}, "headers": {}}
    assert messages.options_of(message, None) != messages.options_of({**message, "headers": {"task": "add"}}, None)


def test_exchanges_and_their_bindings_survive_a_restart(name):
    server = Server("--tasks", "--publish")
    try:
        kinds = {"direct": "red", "topic": "colour.#", "fanout": ""}
        with connect(server) as connection:
            for kind, key in kinds.items():
                exchange = Exchange(f"{name}-{kind}", type=kind)
                for number in range(2):
                    Queue(f"{name}-{kind}-{number}", exchange, key, channel=connection.default_channel).declare()
        server.restart()
        with connect(server) as connection:
            channel = connection.default_channel
            published = [("direct", "red", 2), ("direct", "blue", 0), ("topic", "colour.dark.red", 2), ("topic", "size", 0)]
            for kind, key, count in [*published, ("fanout", "any", 2)]:
                Producer(channel).publish(key, exchange=f"{name}-{kind}", routing_key=key)
                sizes = [channel.queue_purge(f"{name}-{kind}-{number}") for number in range(2)]
                assert sum(sizes) == count and sizes[0] == sizes[1], (kind, key)
            with pytest.raises(ChannelError, match="fanout"):
                channel.exchange_declare(f"{name}-fanout", "topic")
            assert (f"{name}-topic-0", f"{name}-topic", "colour.#") in list(channel.list_bindings())
            channel.queue_unbind(f"{name}-fanout-0", f"{name}-fanout", "")
            channel.queue_delete(f"{name}-fanout-1")
            assert channel.get_table(f"{name}-fanout") == []
            channel.exchange_delete(f"{name}-topic")
            with pytest.raises(ChannelError, match="404|no exchange"):
                channel.exchange_declare(f"{name}-topic", passive=True)
    finally:
        server.end()


def test_fan_out_to_many_queues_is_one_write(connection, client, name):
    exchange = Exchange(name, type="fanout")
    channel = connection.default_channel
    for number in range(20):
        Queue(f"{name}-{number}", exchange, channel=channel).declare()
    adds, session = [], connection.transport.session
    run = session.run
    session.run = lambda command, seconds=0: (adds.append(command[0][0][0]), run(command, seconds))[1]
    Producer(channel).publish("all", exchange=name)
    assert adds.count(0x21) == 1
    assert all(client.queue(f"{name}-{number}").counts().ready == 1 for number in range(20))


def test_a_virtual_host_has_its_own_queues(server, client, name):
    with connect(server, "shop") as one, connect(server) as other:
        one.Producer().publish("shop", routing_key=name)
        other.Producer().publish("all", routing_key=name)
        assert received(one, Queue(name, no_declare=True), 1)[0].payload == "shop"
        assert client.queue(f"shop/{name}").counts().ready == 0 and client.queue(name).counts().ready == 1


def test_no_more_is_taken_than_the_prefetch_count(connection, client, name):
    own, producer, found = client.queue(name), connection.Producer(), []
    for number in range(10):
        producer.publish(number, routing_key=name)
    channel = connection.channel()
    consumer = Consumer(channel, [Queue(name, no_declare=True)], callbacks=[lambda body, message: found.append(message)])
    consumer.qos(prefetch_count=3)
    with consumer:
        while len(found) < 3:
            connection.drain_events(timeout=PATIENCE)
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.1)
        assert (own.counts().lent, own.counts().ready) == (3, 7)
        found[1].ack()
        connection.drain_events(timeout=PATIENCE)
        assert own.counts().lent == 3 and own.counts().ready == 6
    channel.close()
    wait_for(lambda: own.counts().lent == 0)
    tries = [task.tries for task in own.browse()]
    assert sorted(tries) == [0] * 6 + [1] * 3, "what was delivered and not settled goes back, and was a try"


def test_a_channel_that_ends_counts_a_try_of_what_was_delivered_and_not_of_what_has_arrived(connection, client, name):
    own, found = client.queue(name), []
    client.queue(name).configure(tries=1)
    for number in range(3):
        connection.Producer().publish(number, routing_key=name)
    channel = connection.channel()
    consumer = Consumer(channel, [Queue(name, no_declare=True)], callbacks=[lambda body, message: found.append(message)])
    consumer.qos(prefetch_count=3)
    consumer.consume()
    connection.drain_events(timeout=PATIENCE)
    wait_for(lambda: own.counts().lent == 3 and len(connection.transport.puller._arrived) == 2)
    channel.close()
    wait_for(lambda: own.counts().lent == 0)
    assert [task.tries for task in own.browse()] == [0, 0]
    assert [(task.tries, task.reason) for task in own.browse("dead")] == [(1, "connection closed")]


def test_a_message_that_ends_its_consumers_is_dead_after_its_tries(server, client, name):
    own = client.queue(name)
    own.configure(tries=2)

    def fail(message):
        raise OSError("no route")

    with connect(server) as connection:
        connection.Producer().publish("poison", routing_key=name)
    for _ in range(2):
        with connect(server) as connection, pytest.raises(OSError, match="no route"):
            with Consumer(connection.channel(), [Queue(name, no_declare=True)], on_message=fail):
                connection.drain_events(timeout=PATIENCE)
        wait_for(lambda: own.counts().lent == 0)
    assert [(task.tries, task.reason) for task in own.browse("dead")] == [(2, "OSError: no route")]


def test_leases_are_extended_while_nobody_turns_the_loop(connection, client, name):
    queue = connection.SimpleQueue(name)
    queue.put("long")
    message = queue.get(timeout=PATIENCE)
    # Three of them are a lease.
    wait_for_extensions(client.queue(name), 5)
    assert client.queue(name).counts().lent == 1 and client.queue(name).counts().times_ran_out == 0
    message.ack()
    wait_for(lambda: client.queue(name).counts().lent == 0)


def test_leases_and_acknowledgements_outlive_the_server(name):
    server = Server("--tasks", "--publish")
    try:
        with connect(server, lease=30) as connection:
            queue = connection.SimpleQueue(name)
            for number in range(3):
                queue.put(number)
            found = [queue.get(timeout=PATIENCE) for _ in range(2)]
            # The server gets this one, and dies before it reads it.
            server.pause()
            found[0].ack()
            wait_for(lambda: connection.transport.puller._settling)
            server.kill()
            server.start()
            found[1].ack()
            third = queue.get(timeout=PATIENCE)
            assert (third.payload, third.delivery_info["redelivered"]) == (2, False)
            third.ack()
            with spindle.Client(server.kv, timeout=PATIENCE, tasks=server.endpoints["tasks"]) as client:
                wait_for(lambda: client.queue(name).counts().lent == client.queue(name).counts().ready == 0)
                assert client.queue(name).counts().dead == 0
    finally:
        server.end()


def test_what_is_acknowledged_while_the_server_is_away_is_sent_before_the_end(name, monkeypatch):
    monkeypatch.setattr("spindle.celery.puller.CLOSE_SECONDS", PATIENCE)
    server = Server("--tasks", "--publish")
    try:
        connection = connect(server, lease=1000)
        queue = connection.SimpleQueue(name)
        queue.put("done")
        message = queue.get(timeout=PATIENCE)
        puller = connection.transport.puller
        server.kill()
        wait_for(lambda: not puller._link.is_up)
        message.ack()
        closer = threading.Thread(target=connection.close)
        closer.start()
        wait_for(lambda: puller._is_closing)
        server.start()
        closer.join()
        with spindle.Client(server.kv, timeout=PATIENCE, tasks=server.endpoints["tasks"]) as client:
            counts = client.queue(name).counts()
            assert (counts.ready, counts.lent, counts.dead) == (0, 0, 0)
    finally:
        server.end()


def test_a_lease_for_whose_extension_there_is_no_room_is_not_lost(caplog):
    puller = Puller("tcp://127.0.0.1:1", Security(), 60)
    held = [Held(LentTask(b"queue", number, 1, b"key", b""), Subscription(1)) for number in range(3)]
    puller._held = {one.lent.lend_key: one for one in held}
    puller._receive_extended(held, [b"\x24" + (3).to_bytes(4, "big") + bytes((0, 1, 2))])
    assert [one.is_lost for one in held] == [True, False, False] and "no room" in caplog.text
    puller.close()


def test_a_puller_rests_while_there_is_no_server(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    puller = Puller(f"tcp://127.0.0.1:{port}", Security(), 0.003)
    steps, tries = [], []
    step, connect_again = puller._step, puller._link._connect
    monkeypatch.setattr(puller, "_step", lambda now: (steps.append(now), step(now)))
    monkeypatch.setattr(puller._link, "_connect", lambda now: (tries.append(now), connect_again(now)))
    puller.consume(1, [b"queue"], 0)
    wait_for(lambda: len(tries) >= 5)
    puller.close()
    assert len(steps) <= 4 * len(tries), "a step for each try, and few others"


def test_a_connection_from_before_a_fork_is_made_anew(connection, client, name):
    queue = connection.SimpleQueue(name)
    queue.put("parent")
    message = queue.get(timeout=PATIENCE)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            queue.put("child")
            connection.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert queue.get(timeout=PATIENCE).payload == "child"
    lent = sorted(task.tries for task in client.queue(name).browse("lent"))
    assert lent == [1, 1], "the child has not given back what the parent holds"
    message.ack()


def temporary(name, exchange="", ttl=0.05):
    return Queue(name, Exchange(exchange, type="fanout") if exchange else None, auto_delete=True, expires=1.0, message_ttl=ttl)


def test_a_temporary_queue_goes_with_its_channel_and_does_not_sync(server, client, name):
    with connect(server) as connection:
        channel = connection.channel()
        temporary(name, f"{name}-all")(channel).declare()
        assert client.queue(name).counts().sync == "never"
        Producer(channel).publish("gone in 50 ms", exchange=f"{name}-all")
        wait_for(lambda: client.queue(name).counts().ready == 0)
        channel.close()
        assert client.queue(name).counts() == spindle.QueueCounts()
        records = [task.key for task in client.queue("kombu.bindings").browse() if name.encode() in task.key]
        assert records == [f"e\0{name}-all".encode()], "the exchange stays"


def test_a_temporary_queue_is_bound_again_by_the_next_channel(connection, client, name):
    for text in ("first", "second"):
        channel = connection.channel()
        temporary(name, f"{name}-all", 1000)(channel).declare()
        Producer(channel).publish(text, exchange=f"{name}-all")
        assert channel.queue_purge(name) == 1
        channel.close()


def test_a_temporary_queue_of_a_dead_owner_is_removed_by_others(server, client, name, monkeypatch):
    monkeypatch.setattr("spindle.celery.bindings.ALIVE_SECONDS", 0.1)
    with connect(server) as connection:
        # Nobody consumes it, so nobody says that it has an owner.
        temporary(f"{name}-dead", f"{name}-all")(connection.default_channel).declare()
        connection.Producer().publish("x", routing_key=f"{name}-dead")
        session = Session(server.endpoints["tasks"], connection.transport.session.security, PATIENCE)
        alive = client.queue("kombu.bindings")
        wait_for(lambda: not [task for task in alive.browse(group="a") if f"{name}-dead".encode() in task.key])
        Bindings(session, Names("")).sweep()
        assert client.queue(f"{name}-dead").counts() == spindle.QueueCounts()
        records = [task.key for task in alive.browse() if f"{name}-dead".encode() in task.key]
        assert records == []
        session.close()


def test_the_owner_of_a_temporary_queue_keeps_it(server, client, name, monkeypatch):
    monkeypatch.setattr("spindle.celery.bindings.ALIVE_SECONDS", PATIENCE)
    with connect(server, lease=0.3) as connection:
        channel = connection.channel()
        queue = temporary(name, f"{name}-all")
        with Consumer(channel, [queue], no_ack=True):
            records = client.queue("kombu.bindings")

            def numbers():
                return {task.key for task in records.browse(group="a") if task.key.startswith(f"a\0{name}\0".encode())}

            first = numbers()
            wait_for(lambda: numbers() and not numbers() & first)
            Bindings(connection.transport.session, Names("")).sweep()
            assert client.queue(name).counts().sync == "never"


def test_what_is_no_message_is_buried_and_others_are_delivered(connection, client, name):
    client.queue(name).add("stranger", "no message")
    connection.Producer().publish("a message", routing_key=name)
    assert received(connection, Queue(name, no_declare=True), 1)[0].payload == "a message"
    wait_for(lambda: client.queue(name).counts().dead == 1)
    (dead,) = client.queue(name).browse("dead")
    assert dead.key == b"stranger" and "no message of kombu" in dead.reason


MALFORMED = {
    "text": b"no message",
    "no newline": b"{}",
    "list": b"[]\n",
    "deep": b"[" * 100_000 + b"\n",
    "no properties": b"{}\n",
    "properties": b'{"properties":5}\n',
    "delivery_info": b'{"properties":{"delivery_info":[]}}\n',
    "headers": b'{"properties":{},"headers":[1]}\n',
    "content-type": b'{"properties":{},"content-type":{}}\n',
    "content-encoding": b'{"properties":{},"content-encoding":["a"]}\n',
    "unknown content-encoding": b'{"properties":{},"content-encoding":"none"}\nx',
    "priority": b'{"properties":{"priority":{}}}\n',
    "delivery_mode": b'{"properties":{"delivery_mode":[]}}\n',
    "body_encoding": b'{"properties":{"body_encoding":7}}\nx',
    "unknown body_encoding": b'{"properties":{"body_encoding":"zip"}}\nx',
    "no base64": b'{"properties":{"body_encoding":"base64"}}\nx',
    "bytes": b"\xff\xfe\n",
}


def test_malformed_messages_are_buried_with_their_reasons_and_end_no_consumer(connection, client, name):
    own = client.queue(name)
    for kind, value in MALFORMED.items():
        own.add(kind, value)
    own.add("null", b'{"properties":{"delivery_info":null,"body_encoding":"UTF-8"},"headers":null}\nlast')
    (last,) = received(connection, Queue(name, no_declare=True), 1)
    assert bytes(last.body) == b"last" and not last.delivery_info["redelivered"]
    wait_for(lambda: own.counts().dead == len(MALFORMED))
    reasons = {task.key.decode(): task.reason for task in own.browse("dead")}
    assert set(reasons) == set(MALFORMED)
    assert all(reason.startswith("no message of kombu: ") for reason in reasons.values()), reasons
    assert "delivery_info is of type list" in reasons["delivery_info"]
    assert "'zip' is unknown" in reasons["unknown body_encoding"]


def test_records_and_bindings_that_are_none_disturb_no_publisher(server, client, name):
    records, topic, fan = client.queue("kombu.bindings"), f"{name}-topic", f"{name}-fan"
    with connect(server) as connection:
        channel = connection.default_channel
        for exchange, kind in ((topic, "topic"), (fan, "fanout")):
            Queue(f"{name}-queue", Exchange(exchange, type=kind), "colour.#", channel=channel).declare()
    wrong = [
        ("b", f"b:{topic}", ""),
        (f"b\0{topic}", f"b:{topic}", ""),
        (f"b\0{topic}\0key\0{'q' * 256}", f"b:{topic}", ""),
        (f"b\0{topic}\0key\0", f"b:{topic}", ""),
        (f"b\0{topic}\0key\0{name}-json", f"b:{topic}", "{"),
        (f"b\0{topic}\0key\0{name}-ttl", f"b:{topic}", "-1"),
        (f"b\0{topic}\0key\0{name}-nan", f"b:{topic}", "NaN"),
        (f"b\0{topic}\0key\0{name}-type", f"b:{topic}", "[]"),
        (b"b\0" + topic.encode() + b"\0\xff\0x", f"b:{topic}", ""),
        (f"b\0{topic}\0**.*#\0{name}-stars", f"b:{topic}", ""),
        ("t", "t", ""),
        ("a", "a", ""),
        (f"t\0{'t' * 256}", "t", ""),
        (b"t\0\xff", "t", ""),
        (f"e\0{name}-damaged", "e", "{"),
        (f"e\0{name}-unknown", "e", '"headers"'),
    ]
    for key, group, value in wrong:
        assert records.add(key, value, group=group)
    try:
        with connect(server) as connection:
            channel = connection.default_channel
            for exchange in (topic, fan):
                Producer(channel).publish(exchange, exchange=exchange, routing_key="colour.red")
            Producer(channel).publish("stars", exchange=topic, routing_key="**.*#")
            assert channel.queue_purge(f"{name}-queue") == 2 and channel.queue_purge(f"{name}-stars") == 1
            assert (f"{name}-queue", topic, "colour.#") in list(channel.list_bindings())
            connection.transport.bindings.sweep()
            for exchange in (f"{name}-damaged", f"{name}-unknown"):
                Producer(channel).publish("nobody", exchange=exchange, routing_key="x")
                channel.exchange_delete(exchange)
                assert records.get(f"e\0{exchange}") is None
                records.add(f"e\0{exchange}", "{", group="e")
                channel.exchange_declare(exchange, "fanout")
                assert records.get(f"e\0{exchange}") == b'"fanout"'
            channel.queue_delete(f"{name}-queue")
            assert channel.get_table(fan) == []
    finally:
        for key, *_ in wrong:
            records.remove(key)


def test_all_messages_are_acknowledged_up_to_one_or_recovered(connection, client, name):
    queue = connection.SimpleQueue(name)
    for number in range(4):
        queue.put(number)
    found = [queue.get(timeout=PATIENCE) for _ in range(4)]
    found[1].ack(multiple=True)
    wait_for(lambda: client.queue(name).counts().times_done == 2)
    queue.channel.basic_recover(requeue=True)
    assert {queue.get(timeout=PATIENCE).payload for _ in range(2)} == {2, 3}


def test_a_queue_is_purged_and_measured(connection, name):
    channel, producer = connection.default_channel, connection.Producer()
    for number in range(3):
        producer.publish(number, routing_key=name)
    assert channel.queue_declare(name, passive=True).message_count == 3
    assert channel.queue_purge(name) == 3 and channel.queue_declare(name).message_count == 0


def test_a_server_that_is_away_and_one_that_refuses_are_reported(server, name):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(OperationalError, match="Is the server running"):
        Connection(f"spindle://127.0.0.1:{port}//").ensure_connection(max_retries=1, interval_start=0)
    with connect(server) as connection:
        with pytest.raises(spindle.ValueTooLong, match="16 MiB"):
            connection.Producer().publish(bytes(17 << 20), routing_key=name, serializer=None, content_type="x", content_encoding="binary")
        connection.Producer().publish("still usable", routing_key=name)
        with pytest.raises(ChannelError, match="direct, topic, fanout"):
            connection.default_channel.exchange_declare(name, "headers")


def test_a_queue_that_is_deleted_leaves_no_dead_messages_and_one_that_is_purged_does(connection, client, name):
    channel = connection.channel()
    for number in range(2):
        connection.Producer().publish(number, routing_key=name)
    channel.basic_reject(channel.basic_get(name).delivery_tag)
    wait_for(lambda: client.queue(name).counts().dead == 1)
    assert channel.queue_purge(name) == 1 and client.queue(name).counts().dead == 1
    assert channel.queue_delete(name) == 1 and client.queue(name).counts().dead == 0


def test_errors_name_what_to_mend(name):
    server, plain = Guarded("--tasks"), Server("--tasks", "--max-value", "1M")

    def fails(kind, text, kv, login=""):
        with pytest.raises(kind, match=text):
            with Connection(f"spindle://{login}{kv[6:]}//") as connection:
                connection.connect()
                connection.Producer().publish("x", routing_key="other")

    try:
        fails(spindle.Denied, "name of the user or the password is wrong", server.endpoints["tasks"], "bea:wrong@")
        fails(spindle.Denied, "name a user and its password", server.endpoints["tasks"])
        fails(spindle.Denied, "has no users, so leave user and password out", plain.endpoints["tasks"], "bea:aeb@")
        fails(spindle.Denied, "not the permission write for the task queue 'other'", server.endpoints["tasks"], "bea:aeb@")
        fails(spindle.Malformed, f"{plain.kv}: no server of tasks answers there", plain.kv)
        fails(spindle.ConnectionRefused, "Is the server running. It needs --tasks", f"tcp://{nowhere()}")
        app = celery.Celery("x", backend=f"spindle://{plain.endpoints['tasks'][6:]}/", set_as_current=False)
        with pytest.raises(spindle.Malformed, match="no server of tables answers there.*port of --kv"):
            app.AsyncResult("x").get(timeout=PATIENCE)
    finally:
        server.end()
        plain.end()


@pytest.mark.parametrize("host", ["", "shop"])
def test_internal_queues_are_under_one_prefix(server, client, host):
    names = ["u@host.celery.pidbox", "celeryev.x", "celeryev", "kombu.celeryev.x", "kombu.u.pidbox", "kombu.x", "pidbox", "ev"]
    known = Names(host)
    own = [known.task_queue(queue) for queue in names]
    assert len(set(own)) == len(names) and [known.queue(queue.encode()) for queue in own] == names
    begin = f"{host}/" if host else ""
    assert [queue.startswith(f"{begin}kombu.") for queue in own] == [True] * 6 + [False] * 2
    with connect(server, host) as connection:
        for queue in names:
            connection.Producer().publish(queue, routing_key=queue)
            assert client.queue(known.task_queue(queue)).counts().ready == 1
            assert received(connection, Queue(queue, no_declare=True), 1)[0].payload == queue


@pytest.mark.parametrize("mechanism", ["plain", "curve"])
def test_a_user_who_is_no_admin_publishes_and_consumes(name, mechanism):
    server = Guarded("--tasks")
    try:
        options, login = {"lease": 2}, "bea:aeb@"
        if mechanism == "curve":
            options["curve"], login = tuple(server.keys("bea")), ""
        url = f"spindle://{login}{server.endpoints['tasks'][6:]}//"
        with Connection(url, transport_options=options) as connection:
            channel = connection.channel()
            temporary(name, f"{name}-all", 100)(channel).declare()
            Producer(channel).publish("hello", exchange=f"{name}-all", expiration=1000)
            queue = Queue(name, no_declare=True)
            with Consumer(channel, [queue], no_ack=True, callbacks=[lambda body, message: None]):
                connection.drain_events(timeout=PATIENCE)
            simple = connection.SimpleQueue(f"{name}-simple")
            for number in range(100):
                simple.put(number)
            for number in range(100):
                message = simple.get(timeout=PATIENCE)
                assert message.payload == number
                message.ack()
        with pytest.raises((spindle.Denied, OperationalError)):
            Connection(f"spindle://bea:wrong@{server.endpoints['tasks'][6:]}//").ensure_connection(max_retries=1)
    finally:
        server.end()


def test_the_versions_are_known(connection):
    assert connection.info()["transport"] == "spindle" and connection.transport.driver_version() == spindle.__version__
    assert kombu.__version__
