"""Tasks, jobs, and the workers of both."""

import asyncio
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time

import pytest
import zmq
from conftest import PATIENCE
from server import Server

import spindle
from spindle import aio
from spindle._failures import Failures


@pytest.fixture
def work():
    """A server with tasks and jobs, and its client."""
    server = Server("--tasks", "--jobs", "--lease", "1")
    ends = {kind: server.endpoints[kind] for kind in ("tasks", "jobs")}
    with spindle.Client(server.kv, timeout=PATIENCE, **ends) as client:
        yield server, client
    server.end()


def wait_for(condition):
    while not condition():
        threading.Event().wait(0.01)


def test_tasks_are_added_lent_and_repaid(work):
    _, client = work
    tasks = client.tasks.using(spindle.TEXT)
    assert [tasks.add("a", "1"), tasks.add("b", "2"), tasks.add("a", "3"), tasks.add("c", "4", front=True)] == [
        True,
        True,
        False,
        True,
    ]
    assert tasks.count() == 3 and tasks.get("a") == "1" and tasks.get("none") is None
    assert tasks.update("a", "5") and not tasks.update("none", "5")
    first, second = tasks.lend(), tasks.lend(lease=1e30)
    assert (first.key, first.value, second.key, second.value) == (b"c", "4", b"a", "5")
    assert second.lend_key > first.lend_key and tasks.count() == 1
    first.repay("front", "6")
    again = tasks.lend()
    assert (again.key, again.value) == (b"c", "6")
    with pytest.raises(spindle.LeaseLost):
        first.done()
    with pytest.raises(spindle.LeaseLost):
        first.heartbeat()
    assert first.is_lost and not again.is_lost
    again.heartbeat()
    again.repay("drop")
    assert tasks.get("c") == "6" and not tasks.add("c", "again"), "a task that is dropped keeps its key"
    second.heartbeat(0)
    assert tasks.lend().key == b"a", "a heartbeat of 0 gives it back"
    tasks.lend().repay()
    assert tasks.lend().key == b"b"
    assert tasks.lend(wait=0.05) is None
    with pytest.raises(ValueError):
        second.repay("later")
    with pytest.raises(spindle.KeyTooLong):
        tasks.add("k" * 40_000, "")
    assert tasks.stats()["add"] == 5
    assert tasks.remove("c") and not tasks.remove("c") and tasks.get("c") is None


def test_a_lend_waits_for_a_task(work):
    _, client = work
    lent = queue.Queue()
    thread = threading.Thread(target=lambda: lent.put(client.tasks.lend(wait=PATIENCE)))
    thread.start()
    client.tasks.add("late", "x")
    assert lent.get(timeout=PATIENCE).key == b"late"
    thread.join()


def test_a_worker_does_each_task_and_gives_back_what_failed(work):
    _, client = work
    done, tried = [], []

    @client.tasks.worker(slots=3, lease=30)
    def work_on(task):
        tried.append(task.key)
        if tried.count(task.key) == 1 and task.key.endswith(b"7"):
            raise OSError("the first try fails")
        done.append(task.key)

    with work_on:
        for number in range(50):
            client.tasks.add(f"task-{number}", "x")
        wait_for(lambda: len(done) == 50)
    assert sorted(done) == sorted(f"task-{number}".encode() for number in range(50))
    assert len(tried) == 55 and client.tasks.count() == 0
    assert client.tasks.stats()["repay"] == 50 and client.tasks.stats()["heartbeat"] >= 5
    assert client.stats()["tasks"]["queues"][0]["dropped"] == 0
    assert all(client.tasks.add(f"task-{number}", "again") for number in range(50))
    with pytest.raises(spindle.Error, match="once"):
        work_on.start()


def test_a_task_that_is_done_is_gone_with_its_key(work):
    _, client = work
    for _ in range(3):
        assert client.tasks.add("page", "x")
        task = client.tasks.lend()
        task.done()
        assert client.tasks.get("page") is None
        with pytest.raises(spindle.LeaseLost):
            task.done()
        assert task.is_lost
    done = queue.Queue()

    @client.tasks.worker
    def work_on(task):
        done.put(task.value)

    @client.jobs("mail").worker
    def send(job):
        done.put(job.data)

    with work_on, send:
        for number in range(3):
            while not client.tasks.add("page", str(number)):
                threading.Event().wait(0.01)
            assert done.get(timeout=PATIENCE) == str(number).encode()
        client.jobs("mail").add("letter")
        assert done.get(timeout=PATIENCE) == b"letter"
    assert client.tasks.get("page") is None


class OldServer:
    """Stands before a server, and knows the requests of an older one."""

    def __init__(self, endpoint):
        self.context = zmq.Context()
        self.front, self.back = self.context.socket(zmq.ROUTER), self.context.socket(zmq.DEALER)
        self.endpoint = f"tcp://127.0.0.1:{self.front.bind_to_random_port('tcp://127.0.0.1')}"
        self.back.connect(endpoint)
        self.stop = self.context.socket(zmq.PAIR)
        self.stop.bind("inproc://stop")
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        stop = self.context.socket(zmq.PAIR)
        stop.connect("inproc://stop")
        poller = zmq.Poller()
        for found in (self.front, self.back, stop):
            poller.register(found, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if stop in ready:
                return self.context.destroy(0)
            if self.front in ready:
                *envelope, request = self.front.recv_multipart()
                if request[:1] == b"\x05" and request[-1:] == b"\x07":
                    self.front.send_multipart([*envelope, b"\x0b\x0e\x07"])
                else:
                    self.back.send_multipart([*envelope, request])
            if self.back in ready:
                self.front.send_multipart(self.back.recv_multipart())

    def end(self):
        self.stop.send(b"")
        self.thread.join()


def test_an_older_server_forgets_what_is_done_too_and_is_logged_once(work, caplog):
    server, client = work
    old = OldServer(server.endpoints["tasks"])
    try:
        with spindle.Client(server.kv, timeout=PATIENCE, tasks=old.endpoint) as own:
            for _ in range(3):
                assert own.tasks.add("page", "x")
                task = own.tasks.using(spindle.TEXT).lend()
                task.done()
                assert own.tasks.get("page") is None
            own.tasks.add("page", "x")
            late = own.tasks.lend(lease=0)
            with pytest.raises(spindle.LeaseLost):
                late.done()
            assert own.tasks.get("page") == b"x", "another may have it"
        assert [record.levelno for record in caplog.records] == [logging.WARNING] and "older" in caplog.text
    finally:
        old.end()


def test_a_task_that_fails_rests_longer_and_longer_and_is_logged_once(work, caplog):
    _, client = work
    tried, done = [], threading.Event()

    @client.tasks.worker(slots=2, lease=30)
    def work_on(task):
        if task.key == b"good":
            done.set()
            return
        tried.append(time.monotonic())
        raise OSError("no route")

    with work_on:
        client.tasks.add("bad", "x")
        wait_for(lambda: len(tried) == 3)
        client.tasks.add("good", "x")
        assert done.wait(PATIENCE), "others do not wait for it"
    assert 0.7 < tried[1] - tried[0] < 1.9 and 1.4 < tried[2] - tried[1] < 3.4
    assert [record.levelno for record in caplog.records] == [logging.ERROR] and "no route" in caplog.text


def test_failures_back_off_and_are_logged_once_a_minute():
    failures = Failures()
    notes = [failures.note("bad", second) for second in range(130)]
    assert [note.times for note in notes] == list(range(1, 131))
    for note in notes:
        longest = min(2.0 ** (note.times - 1), 300)
        assert 0.75 * longest <= note.pause <= longest
    assert [second for second, note in enumerate(notes) if note.is_logged] == [0, 60, 120]
    failures.forget("bad")
    assert failures.note("bad", 130)[::2] == (1, True)
    for number in range(20_000):
        failures.note(number, 0)
    assert len(failures._failed) == 10_000


def test_a_status_for_what_fails_counts_at_once(work):
    _, client = work
    tried = []

    @client.tasks.worker(failed="drop")
    def work_on(task):
        tried.append(task.key)
        raise OSError("no route")

    with work_on:
        client.tasks.add("bad", "x")
        wait_for(lambda: client.tasks.stats()["repay"])
    assert tried == [b"bad"] and client.tasks.get("bad") == b"x" and client.tasks.count() == 0


def test_a_lease_is_extended_while_the_function_runs(work):
    _, client = work
    calls, lent_again = [], []

    @client.tasks.worker(slots=2, lease=0.6)
    def slow(task):
        calls.append(task.lend_key)
        beats = client.tasks.stats()["heartbeat"]
        wait_for(lambda: client.tasks.stats()["heartbeat"] >= beats + 5)
        lent_again.append(client.tasks.lend())

    client.tasks.add("slow", "x")
    with slow:
        wait_for(lambda: lent_again)
    assert len(calls) == 1 and lent_again == [None] and client.tasks.count() == 0


def test_the_leases_of_all_tasks_that_run_are_extended_together(work, monkeypatch):
    _, client = work
    release, begun, counts = threading.Event(), queue.Queue(), []
    driver = client.tasks._driver
    call_many = driver.call_many
    monkeypatch.setattr(driver, "call_many", lambda sent, timeout: (counts.append(len(sent)), call_many(sent, timeout))[1])

    @client.tasks.worker(slots=4, lease=2)
    def work_on(task):
        begun.put(task)
        release.wait(PATIENCE)

    for number in range(4):
        client.tasks.add(str(number), "x")
    with work_on:
        tasks = [begun.get(timeout=PATIENCE) for _ in range(4)]
        wait_for(lambda: client.tasks.stats()["heartbeat"] >= 12)
        assert max(counts, default=0) == 4
        client.tasks.remove(tasks[0].key)
        wait_for(lambda: tasks[0].is_lost)
        assert not any(task.is_lost for task in tasks[1:])
        release.set()
    assert client.tasks.count() == 0


def test_stopping_ends_what_runs_first(work):
    _, client = work
    begun, released, done = threading.Event(), threading.Event(), []

    @client.tasks.worker(slots=1)
    def work_on(task):
        begun.set()
        assert released.wait(PATIENCE)
        done.append(task.key)

    client.tasks.add("one", "x")
    client.tasks.add("two", "x")
    work_on.start()
    assert begun.wait(PATIENCE)
    stopper = threading.Thread(target=work_on.stop)
    stopper.start()
    wait_for(work_on._stopped.is_set)
    released.set()
    stopper.join()
    assert done == [b"one"] and client.tasks.count() == 1


def test_a_worker_outlives_its_server(work):
    server, client = work
    done = queue.Queue()

    @client.tasks.worker(slots=2)
    def work_on(task):
        done.put(task.key)

    with work_on:
        for number in range(2):
            client.tasks.add(f"task-{number}", "x")
            assert done.get(timeout=PATIENCE) == f"task-{number}".encode()
            wait_for(lambda: client.tasks.stats()["repay"])
            server.restart()


PROGRAM = """
import sys, threading, spindle
client = spindle.Client(sys.argv[1], tasks=sys.argv[2], jobs=sys.argv[3])
@client.{what}.worker(slots=2)
def work(item):
    print("begun", flush=True)
    sys.stdin.readline()
    print("done", flush=True)
work.run()
print("ended", flush=True)
"""


@pytest.mark.parametrize("what", ["tasks", 'jobs("mail")'])
def test_sigterm_ends_a_worker_cleanly(work, what):
    server, client = work
    ends = [server.kv, server.endpoints["tasks"], server.endpoints["jobs"]]
    program = [sys.executable, "-c", PROGRAM.replace("{what}", what), *ends]
    worker = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    client.tasks.add("one", "x")
    client.jobs("mail").add("x")
    try:
        assert worker.stdout.readline() == "begun\n"
        worker.send_signal(signal.SIGTERM)
        worker.stdin.write("\n")
        worker.stdin.flush()
        assert worker.stdout.read() == "done\nended\n" and worker.wait() == 0
    finally:
        worker.kill()
        worker.communicate()
    if what == "tasks":
        assert client.tasks.count() == 0 and client.tasks.stats()["repay"] == 1
    else:
        assert client.jobs("mail").lend(wait=2) is None


def test_jobs_are_added_lent_and_acknowledged(work):
    _, client = work
    mail = client.jobs("mail", codec=spindle.JSON)
    first, second = mail.add({"to": "ada"}), mail.add("x" * 900_000)
    assert first != second and mail.has(first) and not mail.has("none")
    job = mail.lend()
    assert (job.id, job.data) == (first, {"to": "ada"})
    other = mail.lend()
    assert other.data == "x" * 900_000 and mail.lend() is None
    job.done()
    with pytest.raises(spindle.LeaseLost):
        job.done()
    assert not mail.has(first)
    assert mail.lend(wait=PATIENCE).id == second, "its lease of a second has ended"
    assert client.jobs("empty").lend(wait=0.05) is None
    client.jobs("empty").add(b"")
    assert client.jobs("empty").lend().data == b""
    with pytest.raises(spindle.ValueTooLong):
        mail.add("x" * 1_000_001)
    for wrong in ("", "two words", "x" * 256):
        with pytest.raises(ValueError):
            client.jobs(wrong)


def test_a_worker_of_jobs_leaves_what_failed_to_the_end_of_its_lease(work):
    _, client = work
    mail, tried, done = client.jobs("mail"), [], []

    @mail.worker(slots=4)
    def send(job):
        tried.append(job.data)
        if job.data == b"7" and tried.count(b"7") == 1:
            raise OSError("no route")
        done.append(job.data)

    with send:
        for number in range(20):
            mail.add(str(number))
        wait_for(lambda: len(done) == 20)
    assert len(tried) == 21 and done[-1] == b"7" and mail.lend() is None


def test_a_server_of_jobs_that_is_not_there_is_reported(work):
    server, client = work
    mail = client.jobs("mail")
    server.kill()
    with pytest.raises(spindle.Disconnected, match="--jobs"):
        mail.add("x")
    with pytest.raises(spindle.Disconnected, match="HOST:PORT"):
        spindle.Client(server.kv, jobs="nowhere").jobs("mail")
    client.close()
    with pytest.raises(spindle.Closed):
        mail.add("x")
    with pytest.raises(spindle.Closed):
        client.tasks.count()


def test_a_function_of_the_wrong_kind_is_refused_before_it_gets_work(work):
    server, client = work

    async def coroutine(item):
        raise AssertionError("nobody awaits it")

    for decorate in (client.tasks.worker(), client.jobs("mail").worker()):
        with pytest.raises(TypeError, match="aio"):
            decorate(coroutine)

    async def body():
        async with aio.Client(server.kv, tasks=server.endpoints["tasks"]) as own:
            with pytest.raises(TypeError, match="async def"):
                own.tasks.worker()(lambda task: None)

    asyncio.run(body())
    for wrong in ({"slots": 0}, {"failed": "later"}):
        with pytest.raises(ValueError):
            client.tasks.worker(**wrong)(print)
    for worker in (client.tasks.worker, client.jobs("mail").worker):
        with pytest.raises(TypeError, match="calls a function, not 4"):
            worker(4)


def test_workers_of_asyncio(work):
    server, _ = work

    async def body():
        ends = {kind: server.endpoints[kind] for kind in ("tasks", "jobs")}
        async with aio.Client(server.kv, timeout=PATIENCE, **ends) as client:
            done, tried, slow = [], [], []

            @client.tasks.worker(slots=5, lease=0.6)
            async def work_on(task):
                tried.append(task.key)
                if task.key == b"task-7" and tried.count(task.key) == 1:
                    raise OSError("the first try fails")
                if task.key == b"task-8":
                    beats = (await client.tasks.stats())["heartbeat"]
                    while (await client.tasks.stats())["heartbeat"] < beats + 5:
                        await asyncio.sleep(0.05)
                    slow.append(await client.tasks.lend())
                done.append(task.key)

            @client.jobs("mail").worker(slots=2)
            async def send(job):
                done.append(job.data)

            async with work_on, send:
                for number in range(20):
                    await client.tasks.add(f"task-{number}", "x")
                    await client.jobs("mail").add(f"job-{number}")
                while len(done) < 40:
                    await asyncio.sleep(0.01)
            assert len(set(done)) == 40 and tried.count(b"task-7") == 2 and slow == [None]
            assert await client.tasks.count() == 0 and await client.jobs("mail").lend() is None

            @client.tasks.worker()
            async def until_sigterm(task):
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.05)
                done.append(task.key)

            await client.tasks.add("last", "x")
            await client.tasks.add("later", "x")
            await until_sigterm.run()
            assert done[-1] == b"last" and await client.tasks.count() == 1

    asyncio.run(body())


def test_a_full_disk_is_reported():
    server = Server("--tasks", "--jobs", "--segment-size", "64K", "--max-disk", "1M", "--lease", "60")
    ends = {kind: server.endpoints[kind] for kind in ("tasks", "jobs")}
    try:
        with spindle.Client(server.kv, timeout=PATIENCE, **ends) as client:
            with pytest.raises(spindle.OutOfDisk):
                for number in range(1000):
                    client.tasks.add(f"task-{number}", bytes(10_000))
            with pytest.raises(spindle.BadRequest, match="disk"):
                for _ in range(1000):
                    client.jobs("mail").add(bytes(10_000))
            client.tasks.lend().done()
    finally:
        server.end()
