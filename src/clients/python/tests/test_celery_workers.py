"""Celery's workers on a real server: pools, acknowledgements, deaths, remote control, events, results and chords."""

import json
import os
import signal
import sys
import threading
import traceback
from datetime import datetime, timedelta, timezone

import pytest
from conftest import PATIENCE, wait_for_extensions
from server import Guarded, Server

import spindle

celery = pytest.importorskip("celery")
import celery_app  # noqa: E402
from celery import chain, chord, group  # noqa: E402
from celery.exceptions import ImproperlyConfigured, TaskRevokedError  # noqa: E402
from celery_worker import Worker, urls  # noqa: E402

from spindle.celery.backend import SpindleBackend  # noqa: E402
from spindle.celery.chords import Chord, Part  # noqa: E402
from spindle.celery.results import ResultConsumer  # noqa: E402

FLAGS = ("--tasks", "--publish", "--max-value", "1M")


@pytest.fixture(scope="module")
def server():
    server = Server(*FLAGS)
    yield server
    server.end()


@pytest.fixture(scope="module")
def client(server):
    with spindle.Client(server.kv, timeout=PATIENCE, tasks=server.endpoints["tasks"]) as client:
        yield client


@pytest.fixture
def tasks(server, monkeypatch):
    """The tasks of the application, for this server."""
    monkeypatch.setenv("TEST_KV", server.kv)
    return celery_app.build(urls(server))


@pytest.fixture(scope="module")
def worker(server):
    """A worker that tests share."""
    with Worker(server, "-P", "threads", "-c", "4", "-E", name="shared") as worker:
        yield worker


def wait_for(condition):
    while not condition():
        threading.Event().wait(0.02)


def queue_is_empty(client, queue="celery"):
    counts = client.queue(queue).counts()
    return counts.ready == counts.lent == counts.delayed == 0


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_results_groups_chains_and_chords(tasks, server, client, pool):
    add, total = tasks.add, tasks.total
    with Worker(server, "-P", pool, "-c", "2", name=pool) as worker:
        assert add.delay(1, 2).get(timeout=PATIENCE) == 3
        assert group(add.s(n, n) for n in range(10))().get(timeout=PATIENCE) == [2 * n for n in range(10)]
        assert chain(add.s(1, 2), add.s(3), add.s(4))().get(timeout=PATIENCE) == 10
        assert chord((add.s(n, 1) for n in range(20)), total.s())().get(timeout=PATIENCE) == 210
        assert tasks.flaky.delay(f"retry-{pool}").get(timeout=PATIENCE) == 3
        with pytest.raises(OSError, match="no route"):
            tasks.fail.delay("no route").get(timeout=PATIENCE)
        wait_for(lambda: queue_is_empty(client))
        worker.terminate()
    assert client.queue("celery").counts().dead == 0


def test_a_task_of_a_worker_that_is_killed_runs_again(tasks, server, client):
    result = tasks.held.delay("killed")
    with Worker(server, "-P", "prefork", "-c", "1", lease="1", name="first") as first:
        celery_app.wait_until("begun-killed")
        first.kill()
    celery_app.note("release-killed")
    with Worker(server, "-P", "solo", lease="1", name="second"):
        assert result.get(timeout=PATIENCE) == 2
        wait_for(lambda: queue_is_empty(client))
    assert int(celery_app.notes().get("ended-killed")) == 1


def test_a_task_that_kills_its_process_is_given_back_at_once(tasks, server, client):
    with Worker(server, "-P", "prefork", "-c", "1", lease="1000", name="lost"):
        assert tasks.die_once.delay("lost").get(timeout=PATIENCE) == 2
        wait_for(lambda: queue_is_empty(client))


def test_a_cold_shutdown_gives_back_what_is_not_done_at_once(tasks, server, client):
    for number in range(3):
        tasks.held.delay(f"cold-{number}")
    flags = ("-P", "prefork", "-c", "1", "--prefetch-multiplier", "3")
    with Worker(server, *flags, lease="1000", name="cold") as worker:
        celery_app.wait_until("begun-cold-0")
        wait_for(lambda: client.queue("celery").counts().lent == 3)
        worker.process.send_signal(signal.SIGQUIT)
        worker.process.wait()
        counts = client.queue("celery").counts()
        assert (counts.ready, counts.lent, counts.dead) == (3, 0, 0), worker.text()
        tries = sorted(task.tries for task in client.queue("celery").browse())
        assert tries == [0, 0, 1], "only the one that ran was begun"
    client.queue("celery").purge("ready")


def test_a_warm_shutdown_gives_back_what_its_pool_has_not_got_as_not_begun(tasks, server, client):
    results = [tasks.held.delay(f"warm-{number}") for number in range(3)]
    flags = ("-P", "prefork", "-c", "1", "--prefetch-multiplier", "3")
    with Worker(server, *flags, lease="1000", name="warm") as worker:
        celery_app.wait_until("begun-warm-0")
        wait_for(lambda: client.queue("celery").counts().lent == 3)
        worker.process.terminate()
        wait_for(lambda: "Warm shutdown" in worker.text())
        celery_app.note("release-warm-0")
        worker.process.wait()
        assert results[0].get(timeout=PATIENCE) == 1
        counts = client.queue("celery").counts()
        assert (counts.ready, counts.lent, counts.dead) == (2, 0, 0), worker.text()
        tries = {task.tries for task in client.queue("celery").browse()}
        assert 0 in tries, "the pool may have got the second one, and not the third"
    client.queue("celery").purge("ready")


def task_value(headers, body, **envelope):
    """A message of the queue as its publisher may write it."""
    given = {"content-type": "application/json", "content-encoding": "utf-8", "properties": {}, "headers": headers}
    return json.dumps({**given, **envelope}).encode() + b"\n" + (body if isinstance(body, bytes) else json.dumps(body).encode())


MALFORMED = {
    "no id": task_value({"task": "add"}, [[1, 1], {}, {}]),
    "id": task_value({"task": "add", "id": {}}, [[1, 1], {}, {}]),
    "task": task_value({"task": [], "id": "x"}, [[1, 1], {}, {}]),
    "timelimit": task_value({"task": "add", "id": "x", "timelimit": ["a", 1]}, [[1, 1], {}, {}]),
    "one timelimit": task_value({"task": "add", "id": "x", "timelimit": 5}, [[1, 1], {}, {}]),
    "empty body": task_value({"task": "add", "id": "x"}, []),
    "number": task_value({"task": "add", "id": "x"}, 5),
    "embed": task_value({"task": "add", "id": "x"}, [[], {}, []]),
    "args": task_value({"task": "add", "id": "x"}, [5, {}, {}]),
    "bytes": task_value({"task": "add", "id": "x"}, b"\xff", **{"content-type": "application/data"}),
    "first protocol": task_value({}, {"task": "add", "args": [1, 1]}),
    "task of the first protocol": task_value({}, {"task": {}, "id": "x"}),
    "envelope": b'{"properties":{"delivery_info":[]}}\n',
}
CONTROL = {
    "text": b"no message",
    "number": task_value({}, 5),
    "no method": task_value({}, {}),
    "clock": task_value({"clock": []}, {"method": "ping"}),
    "method": task_value({}, {"method": [], "destination": 5}),
    "bytes": task_value({}, b"\xff"),
}


def test_malformed_tasks_are_buried_and_end_no_worker(tasks, server, client):
    own = client.queue("celery")
    own.purge("dead")
    for kind, value in MALFORMED.items():
        own.add(f"malformed {kind}", value)
    result = tasks.add.delay(20, 3)
    with Worker(server, "-P", "solo", name="malformed") as worker:
        wait_for(lambda: result.ready() or worker.process.poll() is not None)
        assert worker.process.poll() is None, worker.text()
        assert result.get(timeout=PATIENCE) == 23
        wait_for(lambda: queue_is_empty(client))
        assert {task.key.decode()[10:] for task in own.browse("dead")} == set(MALFORMED), worker.text()
        assert all(task.reason.startswith(("no task of Celery: ", "no message of kombu: ")) for task in own.browse("dead"))
        pidbox = client.queue("kombu.malformed@test.celery.pidbox")
        for kind, value in CONTROL.items():
            pidbox.add(kind, value)
        # Celery makes the queue anew after such a message, and requests may go with it.
        wait_for(lambda: tasks.app.control.ping(timeout=1, limit=1, destination=["malformed@test"]))
        assert worker.process.poll() is None, worker.text()
        worker.terminate()
    own.purge("dead")


def test_a_long_task_of_the_pool_solo_keeps_its_lease(tasks, server, client):
    with Worker(server, "-P", "solo", lease="0.6", name="long"):
        result = tasks.held.delay("long")
        celery_app.wait_until("begun-long")
        # Three of them are a lease.
        wait_for_extensions(client.queue("celery"), 7)
        assert client.queue("celery").counts().lent == 1
        celery_app.note("release-long")
        assert result.get(timeout=PATIENCE) == 1
        wait_for(lambda: queue_is_empty(client))


def test_workers_outlive_the_server_and_nothing_runs_twice(monkeypatch):
    server = Server(*FLAGS)
    monkeypatch.setenv("TEST_KV", server.kv)
    tasks = celery_app.build(urls(server))
    try:
        with Worker(server, "-P", "prefork", "-c", "2", lease="30", name="outlive"):
            held = [tasks.held.delay(f"outlive-{number}") for number in range(2)]
            for number in range(2):
                celery_app.wait_until(f"begun-outlive-{number}")
            results = [tasks.add.delay(number, 1) for number in range(4)]
            client = spindle.Client(server.kv, timeout=PATIENCE, tasks=server.endpoints["tasks"])
            server.restart()
            for number in range(2):
                client.table("notes").incr(f"release-outlive-{number}")
            assert [result.get(timeout=PATIENCE) for result in held] == [1, 1]
            assert [result.get(timeout=PATIENCE) for result in results] == [1, 2, 3, 4]
            wait_for(lambda: queue_is_empty(client))
            assert [client.table("notes").get(f"begun-outlive-{number}") for number in range(2)] == [b"1", b"1"]
            client.close()
    finally:
        server.end()


def test_a_rejected_task_is_buried_with_its_reason(tasks, worker, client):
    before = client.queue("celery").counts().dead
    tasks.refuse.delay("bad address")
    wait_for(lambda: client.queue("celery").counts().dead > before)
    *_, dead = client.queue("celery").browse("dead")
    assert dead.reason == "bad address"
    assert tasks.refuse.delay("not yet", True).get(timeout=PATIENCE) == "accepted"
    client.queue("celery").purge("dead")


def test_a_task_that_no_worker_knows_is_buried_with_its_reason(tasks, worker, client):
    client.queue("celery").purge("dead")
    tasks.app.send_task("nobody.knows")
    wait_for(lambda: client.queue("celery").counts().dead)
    (dead,) = client.queue("celery").browse("dead")
    assert dead.reason.startswith("the worker has no task of this name") and "nobody.knows" in dead.reason
    client.queue("celery").purge("dead")


def test_eta_and_countdown_wait_at_the_server(tasks, worker, client):
    result = tasks.add.apply_async((1, 1), countdown=0.5)
    later = tasks.add.apply_async((1, 2), eta=datetime.now(timezone.utc) + timedelta(hours=1))
    wait_for(lambda: len(list(client.queue("celery").browse("delayed"))) >= 1)
    assert result.get(timeout=PATIENCE) == 2
    (delayed,) = client.queue("celery").browse("delayed")
    assert 3500 < delayed.left <= 3600
    assert not any(tasks.app.control.inspect(timeout=1).scheduled().values())
    later.revoke()
    client.queue("celery").purge("delayed")


def test_an_expired_task_is_revoked_by_its_worker(tasks, worker):
    result = tasks.add.apply_async((1, 1), expires=-1)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=PATIENCE)


def test_a_revoked_task_does_not_run(tasks, worker):
    result = tasks.run.apply_async(("revoked",), countdown=0.7)
    tasks.app.control.revoke(result.id)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=PATIENCE)
    assert celery_app.notes().get("run-revoked") is None


def test_remote_control_and_its_temporary_queues(tasks, worker, client):
    assert tasks.add.delay(1, 1).get(timeout=PATIENCE) == 2
    for _ in range(3):
        assert tasks.app.control.ping(timeout=2, limit=1) == [{"shared@test": {"ok": "pong"}}]
    stats = tasks.app.control.inspect(timeout=2).stats()["shared@test"]
    assert stats["broker"]["transport"] == "spindle"
    assert tasks.app.control.add_consumer("other", reply=True, timeout=2, limit=1)
    assert tasks.add.apply_async((2, 2), queue="other").get(timeout=PATIENCE) == 4
    assert tasks.app.control.cancel_consumer("other", reply=True, timeout=2, limit=1)
    tasks.app.close()
    # A request may wait on the queue for a while. It has no message and no setting any more.
    wait_for(lambda: not [name for name, counts in client.queues().items() if "reply" in name and counts.sync])
    assert client.queues()["kombu.shared@test.celery.pidbox"].sync == "never"


class GuardedForCelery(Guarded):
    """A user of Celery with the permissions of the page, and none besides."""

    PAGE = ("--tasks-write", "kombu.", "--tasks-write", "celery", "--own", "celery-results")
    USERS = {"root": ("--admin",), "cel": PAGE}


def test_a_user_needs_the_permissions_of_the_page_alone(caplog):
    server, login = GuardedForCelery(*FLAGS), "cel:lec@"
    try:
        tasks, events = celery_app.build(urls(server, login=login)), []
        with Worker(server, "-P", "threads", "-c", "2", "-E", name="u", login=login) as worker:
            assert tasks.add.delay(1, 2).get(timeout=PATIENCE) == 3, worker.text()
            assert tasks.app.control.inspect(timeout=PATIENCE, destination=["u@test"]).ping() == {"u@test": {"ok": "pong"}}
            with tasks.app.connection_for_read() as connection:
                tasks.app.events.Receiver(connection, handlers={"*": events.append}).capture(limit=1, timeout=PATIENCE)
            tasks.app.close()
            worker.terminate()
            assert events and "may not" not in worker.text() and "stay" not in worker.text(), worker.text()
        assert not caplog.records
        with spindle.Client(server.kv, tasks=server.endpoints["tasks"], user="root", password="toor") as client:
            names = set(client.queues())
        assert "kombu.bindings" in names and all(name.startswith(("kombu.", "celery", "default")) for name in names), names
        assert not any(name.startswith("celeryev") for name in names)
    finally:
        server.end()


def test_events_reach_who_listens(tasks, worker, client):
    found, ready = [], threading.Event()
    with tasks.app.connection_for_read() as connection:
        handlers = {"task-succeeded": lambda event: (found.append(event), ready.set())}
        receiver = tasks.app.events.Receiver(connection, handlers=handlers)
        listener = threading.Thread(target=receiver.capture, kwargs={"timeout": 5, "wakeup": False})
        listener.start()
        wait_for(lambda: [name for name, counts in client.queues().items() if "celeryev" in name and counts.waiting])
        result = tasks.add.delay(20, 3)
        assert result.get(timeout=PATIENCE) == 23 and ready.wait(PATIENCE)
        receiver.should_stop = True
        listener.join()
    assert result.id in {event["uuid"] for event in found}


def test_get_is_woken_and_asks_once(tasks, worker, monkeypatch):
    monkeypatch.setattr("spindle.celery.results.LOOK_SECONDS", float("inf"))
    asked = []
    original = SpindleBackend.get
    monkeypatch.setattr(SpindleBackend, "get", lambda self, key: (asked.append(key), original(self, key))[1])
    result = tasks.held.delay("woken")
    celery_app.wait_until("begun-woken")
    receive, is_waiting = ResultConsumer._receive, threading.Event()
    monkeypatch.setattr(ResultConsumer, "_receive", lambda self, time: (is_waiting.set(), receive(self, time))[1])
    releaser = threading.Thread(target=lambda: is_waiting.wait(PATIENCE) and celery_app.note("release-woken"))
    releaser.start()
    assert result.get(timeout=PATIENCE) == 1
    releaser.join()
    assert len(asked) <= 4, "before it waits, and for each of its states"


def test_a_result_that_cannot_be_read_fails_for_who_waits_for_it_alone(tasks, server):
    backend, app = tasks.app.backend, tasks.app
    metas = ["no JSON", "[]", {"status": "SUCCESS", "result": 1}, {"task_id": "other", "status": "SUCCESS", "result": 1}]
    metas += [{"status": "FAILURE", "result": 5}, {"status": "SUCCESS", "result": 1, "children": [5]}, {"status": []}]
    broken = [app.AsyncResult(f"broken-{number}") for number in range(len(metas))]
    good, ended = app.AsyncResult("good"), []

    def wait(result):
        try:
            ended.append(result.get(timeout=PATIENCE))
        except Exception as error:
            ended.append(type(error))

    threads = [threading.Thread(target=wait, args=(result,)) for result in [*broken, good]]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(backend.result_consumer._tasks) == len(threads) and backend.result_consumer._reading.locked())
    for result, meta in zip(broken, metas):
        given = meta if isinstance(meta, str) else json.dumps({"task_id": result.id, **meta})
        backend.set(backend.get_key_for_task(result.id), given)
    backend.store_result("good", 23, "SUCCESS")
    for thread in threads:
        thread.join()
    assert sorted(map(str, ended)) == sorted(["23", "1", *[str(spindle.Malformed)] * 6])


def test_many_threads_wait_for_their_results(tasks, worker):
    results, found = [tasks.add.delay(number, 0) for number in range(12)], {}
    threads = [
        threading.Thread(target=lambda number=number: found.update({number: results[number].get(timeout=PATIENCE)}))
        for number in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: number for number in range(12)}


def test_a_part_of_a_chord_that_runs_again_counts_once(tasks, server):
    backend = tasks.app.backend
    chord_of = Chord(backend, "gid")
    chord_of.begin(2)
    first, second = Part("0", "a"), Part("1", "b")
    assert chord_of.count(first) is None and chord_of.count(first) is None
    assert chord_of.count(second) == [first, second] == chord_of.count(first)
    assert chord_of.claim()
    chord_of.end([first, second])
    assert chord_of.is_done() and not Chord(backend, "gid").claim()
    leftover = [key for key in backend.table.scan() if key.startswith(b"chord-unlock-gid")]
    assert len(leftover) == 1, "only that it is done is kept"


def test_a_part_that_is_added_counts_once_when_the_reply_is_lost(tasks, server, monkeypatch):
    backend, lost = tasks.app.backend, []
    chord_of = Chord(backend, "added")
    chord_of.begin(1)
    table_type = type(backend.table)

    def losing(name):
        original = getattr(table_type, name)

        def called(self, *args, **kwargs):
            result = original(self, *args, **kwargs)
            if len(lost) < 2:
                lost.append(name)
                raise spindle.Disconnected("the reply is lost")
            return result

        monkeypatch.setattr(table_type, name, called)

    losing("cas")
    losing("incr")
    backend.add_to_chord("added", tasks.app.AsyncResult("b"))
    assert lost, "the request is repeated"
    first, second = Part("0", "a"), Part("", "b")
    assert chord_of.count(first) is None
    assert chord_of.count(second) == [first, second]
    chord_of.end([first, second])


def test_lines_of_a_chord_that_are_none_are_passed_over(tasks, server):
    backend = tasks.app.backend
    chord_of = Chord(backend, "lines")
    chord_of.begin(2)
    for number, line in enumerate((b"no number", b"one", b"\xff \xfe", "\u00b2 a".encode(), b"-1 a")):
        backend.table.set(chord_of._shards[number], line + b"\n")
    first, second = Part("0", "a % b"), Part("10", "b\n2 c")
    assert chord_of.count(second) is None
    assert chord_of.count(first) == [first, second]
    chord_of.end([first, second])


def test_long_ids_are_hashed_and_long_results_are_refused_clearly(tasks, worker):
    result = tasks.add.apply_async((1, 5), task_id="x" * 300)
    assert result.get(timeout=PATIENCE) == 6
    result.forget()
    assert tasks.app.AsyncResult("x" * 300).state == "PENDING"
    with pytest.raises(spindle.ValueTooLong, match="--max-value"):
        tasks.app.backend.set("long", bytes((1 << 20) + 1))


def test_a_server_with_small_values_is_named_at_first_use():
    server = Server("--tasks", "--publish")
    try:
        backend = celery_app.build(urls(server)).app.backend
        with pytest.raises(ImproperlyConfigured, match="--max-value 1M"):
            backend.get_task_meta("x")
    finally:
        server.end()


def test_a_fork_makes_its_own_connections(tasks, worker):
    assert tasks.add.delay(1, 1).get(timeout=PATIENCE) == 2
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if tasks.add.delay(2, 2).get(timeout=PATIENCE) == 4 else 2
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert tasks.add.delay(3, 3).get(timeout=PATIENCE) == 6
