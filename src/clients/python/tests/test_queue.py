"""Queues by name, and their workers."""

import asyncio
import queue
import signal
import subprocess
import sys
import threading

import pytest
from conftest import PATIENCE, wait_for_extensions
from server import Server

import spindle
from spindle import _queues, aio


@pytest.fixture(scope="module")
def work():
    """A server with tasks, and its client."""
    server = Server("--tasks")
    with spindle.Client(server.kv, timeout=PATIENCE, tasks=server.endpoints["tasks"]) as client:
        yield server, client
    server.end()


@pytest.fixture
def own(work, name):
    """A queue that no other test has."""
    return work[1].queue(name)


def wait_for(condition):
    while not condition():
        threading.Event().wait(0.01)


def test_tasks_are_added_lent_and_settled(own):
    assert [own.add("a", "1"), own.add("b", "2", front=True), own.add("a", "3")] == [True, True, False]
    assert own.get("a") == b"1" and own.update("a", "4") and own.get("none") is None
    first, second = own.lend_many(5)
    assert (first.key, first.value, second.key, second.value) == (b"b", b"2", b"a", b"4")
    assert second.lend_key > first.lend_key and first.tries == 1 and first.queue == own.name
    first.extend(30)
    first.done()
    with pytest.raises(spindle.LeaseLost):
        first.done()
    assert first.is_lost
    second.give_back()
    again = own.lend()
    assert (again.key, again.tries) == (b"a", 2)
    again.undo()
    again = own.lend()
    assert again.tries == 2, "what was not begun was no try"
    again.bury("no route")
    assert own.lend() is None
    (dead,) = own.browse("dead")
    assert (dead.key, dead.reason, dead.tries, dead.size) == (b"a", "no route", 2, 1)
    assert own.kick("a") == 1 and own.kick("a") == 0
    assert own.remove("a") and not own.remove("a")


def test_the_options_of_a_task(own):
    own.add("late", "", priority=7)
    own.add("delayed", "", delay=1000)
    own.add("urgent", "", priority=1)
    own.add("expired", "", priority=0, expires=0)
    own.add("once", "", priority=2, tries=1)
    assert [task.key for task in own.lend_many(9)] == [b"urgent", b"once", b"late"]
    (delayed,) = own.browse("delayed")
    assert 990 < delayed.left <= 1000
    assert own.kick(state="delayed") == 1 and own.lend().key == b"delayed"
    lent = list(own.browse("lent", first_bytes=10))
    assert {task.key: task.priority for task in lent}[b"late"] == 7


def test_a_task_is_dead_after_its_tries_and_rests_for_its_backoff(own):
    own.add("bad", "", tries=2)
    own.lend().give_back(reason="first")
    own.lend().give_back(reason="second")
    assert [(task.tries, task.reason) for task in own.browse("dead")] == [(2, "second")]
    own.add("slow", "", backoff=(100, 1000))
    own.lend().give_back()
    (resting,) = own.browse("delayed")
    assert resting.key == b"slow" and 0 < resting.left <= 100
    own.kick("slow")
    own.lend().give_back(delay=5000)
    (resting,) = own.browse("delayed")
    assert 4000 < resting.left <= 5000


def test_groups_take_turns_and_have_a_limit(own):
    own.configure(group_limit=1)
    for group in ("ada", "bob"):
        for number in range(2):
            own.add(f"{group}-{number}", "", group=group)
    assert [task.group for task in own.browse(group="bob")] == [b"bob", b"bob"]
    assert [task.key for task in own.lend_many(9)] == [b"ada-0", b"bob-0"]


def test_a_queue_is_configured_paused_and_counted(own):
    own.configure(tries=3, backoff=(1, 60), rate=spindle.Rate(5, 60, 2), sync="never")
    counts = own.counts()
    assert (counts.tries, counts.backoff, counts.rate, counts.sync) == (3, (1.0, 60.0), (5, 60.0, 2), "never")
    own.configure(tries=None, backoff=7, rate=None, sync=0.5)
    counts = own.counts()
    assert (counts.tries, counts.backoff, counts.rate, counts.sync) == (None, (7.0, 7.0), None, 0.5)
    own.pause(1000)
    own.add("a", "")
    counts = own.counts()
    assert counts.is_paused and 990 < counts.pause_left <= 1000 and counts.ready == 1 and own.lend() is None
    own.pause()
    assert own.counts().is_paused and own.counts().pause_left is None
    own.resume()
    own.lend().done()
    counts = own.counts()
    assert not counts.is_paused and (counts.ready, counts.times_added, counts.times_done) == (0, 1, 1)
    with pytest.raises(ValueError):
        own.configure(sync="soon")


def test_kicks_and_purges_of_many(own):
    for number in range(5):
        own.add(f"dead-{number}", "")
    for task in own.lend_many(5):
        task.bury()
    own.add("ready", "")
    assert own.kick(most=2) == 2
    assert own.purge("dead") == 3
    assert own.purge("ready", older=1000) == 0 and own.purge("ready", "delayed") == 3
    for wrong in ((), ("lent",)):
        with pytest.raises(ValueError):
            own.purge(*wrong)
    with pytest.raises(ValueError):
        own.kick(state="ready")


def test_browsing_shows_many_tasks_once_and_in_order(own):
    for number in range(2500):
        own.add(f"{number:04}", f"value {number}")
    shown = list(own.browse(first_bytes=7))
    assert [task.key for task in shown] == [b"%04d" % number for number in range(2500)]
    assert shown[42].first == b"value 4" and shown[42].size == 8


def test_fan_out_is_one_add_to_all(work, name):
    _, client = work
    names = [f"{name}-{number}" for number in range(3)]
    client.queue(names[0]).add("key", "old")
    assert client.fan_out(names, "key", "new") == {names[0]: False, names[1]: True, names[2]: True}
    assert [client.queue(one).get("key") for one in names] == [b"old", b"new", b"new"]
    counts = client.queues()
    assert [counts[one].ready for one in names] == [1, 1, 1]
    with pytest.raises(ValueError, match="1024"):
        client.fan_out([], "key", "value")


def test_a_lend_waits_at_the_server_without_asking_again(work, own):
    server, client = work
    lent = queue.Queue()
    waiter = threading.Thread(target=lambda: lent.put(own.lend(wait=PATIENCE)))
    waiter.start()
    wait_for(lambda: own.counts().waiting == 1)
    assert client.queue("other").add("x", "y"), "the connection serves others meanwhile"
    client.queue("other").remove("x")
    own.add("a", "1")
    assert lent.get(timeout=PATIENCE).key == b"a"
    waiter.join()
    assert own.lend(wait=0.05) is None
    assert own.counts().waiting == 0


def test_wrong_arguments_are_refused_in_clear_sentences(work, own):
    for name in ("", "q" * 256):
        with pytest.raises(ValueError, match="1 to 255 bytes"):
            work[1].queue(name)
    with pytest.raises(spindle.KeyTooLong):
        own.add("k" * 40_000, "")
    with pytest.raises(spindle.ValueTooLong):
        own.add("k", bytes(17 << 20))
    for wrong in ({"delay": -1}, {"backoff": (5, 1)}, {"backoff": (1, 2, 3)}):
        with pytest.raises(ValueError):
            own.add("k", "", **wrong)
    with pytest.raises(TypeError):
        own.add("k", "", priority=1.5)
    with pytest.raises(ValueError, match="once or more"):
        own.worker(tries=0)
    with pytest.raises(ValueError, match="ready, delayed"):
        next(own.browse("lost"))


def test_a_worker_gives_back_with_the_reason_and_buries_after_its_tries(work, own):
    _, client = work
    tried, done = [], threading.Event()

    @client.worker(own.name, slots=2, tries=3, backoff=0.01)
    def send(task):
        tried.append((task.key, task.tries))
        if task.key == b"bad":
            raise OSError("no route\nto ada")
        done.set()

    own.add("bad", "")
    own.add("good", "")
    with send:
        assert done.wait(PATIENCE)
        wait_for(lambda: own.counts().dead)
    assert [tries for key, tries in tried if key == b"bad"] == [1, 2, 3]
    (dead,) = own.browse("dead")
    assert (dead.key, dead.reason) == (b"bad", "to ada")
    assert own.counts().ready == 0


def test_a_worker_takes_no_more_than_its_free_slots(own):
    begun, release = queue.Queue(), threading.Event()

    @own.worker(slots=3)
    def work_on(task):
        begun.put(task.key)
        release.wait(PATIENCE)

    for number in range(10):
        own.add(str(number), "")
    with work_on:
        for _ in range(3):
            begun.get(timeout=PATIENCE)
        counts = own.counts()
        assert (counts.lent, counts.ready, counts.waiting) == (3, 7, 0)
        release.set()
        wait_for(lambda: own.counts().ready == own.counts().lent == 0)


def test_a_lease_is_extended_while_its_function_runs(own):
    seen = []

    @own.worker(lease=0.5)
    def slow(task):
        # Three of them are a lease.
        wait_for_extensions(own, 7)
        seen.append((task.tries, own.lend()))

    own.add("slow", "")
    with slow:
        wait_for(lambda: seen)
    assert seen == [(1, None)] and own.get("slow") is None


def test_the_leases_of_all_that_runs_are_extended_by_one_request(own, monkeypatch):
    release, begun, counts = threading.Event(), queue.Queue(), []
    extend = _queues.extend
    monkeypatch.setattr(_queues, "extend", lambda leases: (counts.append(len(leases)), extend(leases))[1])

    @own.worker(slots=8, lease=2)
    def work_on(task):
        begun.put(task)
        release.wait(PATIENCE)

    for number in range(8):
        own.add(str(number), "")
    with work_on:
        tasks = [begun.get(timeout=PATIENCE) for _ in range(8)]
        wait_for(lambda: sum(counts) >= 24)
        assert max(counts) == 8
        own.remove(tasks[0].key)
        wait_for(lambda: tasks[0].is_lost)
        assert not any(task.is_lost for task in tasks[1:])
        release.set()
    assert own.counts().ready == own.counts().lent == 0


def test_a_lease_for_whose_extension_there_is_no_room_is_not_lost(own, monkeypatch):
    for number in range(3):
        own.add(str(number), "")
    tasks, source = own.lend_many(3), own.worker(print)._source
    monkeypatch.setattr(own, "_run", lambda command: command[1]([b"\x24" + (3).to_bytes(4, "big") + bytes((0, 1, 2))]))
    with pytest.raises(spindle.OutOfDisk):
        source.extend(tasks)
    assert [task.is_lost for task in tasks] == [True, False, False]


def test_a_worker_that_stops_keeps_the_leases_of_what_runs(own):
    begun, release, done = threading.Event(), threading.Event(), []

    @own.worker(lease=0.6)
    def work_on(task):
        begun.set()
        release.wait(PATIENCE)
        task.extend()
        done.append(task.tries)

    own.add("slow", "")
    work_on.start()
    assert begun.wait(PATIENCE)
    stopper = threading.Thread(target=work_on.stop)
    stopper.start()
    wait_for(lambda: work_on._source._own._driver._link.closed is not None)
    # Three of them are a lease.
    wait_for_extensions(own, 5)
    release.set()
    stopper.join()
    assert done == [1] and own.get("slow") is None


DYING = """
import os, sys, spindle
client = spindle.Client(sys.argv[1], tasks=sys.argv[2])
@client.worker(sys.argv[3], lease=0.2, tries=2, backoff=0)
def work(task):
    print(task.tries, flush=True)
    os.kill(os.getpid(), 9)
work.run()
"""


def test_a_task_that_kills_its_workers_is_dead_after_the_tries(work, own):
    server, _ = work
    own.add("poison", "")
    program = [sys.executable, "-c", DYING, server.kv, server.endpoints["tasks"], own.name]
    for tries in ("1", "2"):
        died = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE)
        assert died.returncode == -signal.SIGKILL and died.stdout.strip() == tries
    calls = []
    with own.worker(tries=2)(calls.append):
        wait_for(lambda: own.counts().dead == 1)
    assert not calls and next(own.browse("dead")).reason == "lease ran out"


def test_nothing_is_lost_when_the_server_dies(name):
    server = Server("--tasks")
    try:
        with spindle.Client(server.kv, timeout=PATIENCE, tasks=server.endpoints["tasks"]) as client:
            own, done = client.queue(name), []

            @own.worker(slots=4, lease=1)
            def work_on(task):
                done.append(task.key)

            with work_on:
                for number in range(60):
                    if number % 20 == 10:
                        server.restart()
                    while True:
                        try:
                            own.add(str(number), "")
                            break
                        except spindle.Disconnected:
                            pass
                wait_for(lambda: len(set(done)) == 60)
            wait_for(lambda: own.counts().ready == own.counts().lent == 0)
    finally:
        server.end()


def test_queues_of_asyncio(work, name):
    server, _ = work

    async def body():
        async with aio.Client(server.kv, timeout=PATIENCE, tasks=server.endpoints["tasks"]) as client:
            own, done, tried = client.queue(name), [], []

            # One that is cancelled while it waits takes no task with it, and that is no try.
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(own.lend(lease=1000, wait=2), 0.05)
            assert (await own.counts()).waiting == 1
            await own.add("a", "1")
            task = await own.lend(wait=PATIENCE)
            assert (task.key, task.tries) == (b"a", 1)
            await task.done()

            @own.worker(slots=5, backoff=0.01)
            async def work_on(task):
                tried.append(task.key)
                if task.key == b"7" and tried.count(b"7") == 1:
                    raise OSError("the first try fails")
                done.append(task.key)

            async with work_on:
                for number in range(20):
                    await own.add(str(number), "")
                while len(done) < 20:
                    await asyncio.sleep(0.01)
            assert len(set(done)) == 20 and tried.count(b"7") == 2
            assert [task async for task in own.browse()] == []
            assert (await client.fan_out([name], "k", "v")) == {name: True}
            assert (await client.queues())[name].ready == 1

    asyncio.run(body())
