"""What is left behind: by clients that end, by forks, and by the end of the interpreter."""

import gc
import os
import subprocess
import sys

import pytest
from conftest import PATIENCE

import spindle

PROGRAM = """
import os, sys, threading, time, asyncio, spindle
kv, feed, tasks, jobs = sys.argv[1:]
client = spindle.Client(kv, timeout=30, feed=feed, tasks=tasks, jobs=jobs)
table = client.table("lifetime", create=True)
"""
ENDS = {
    "a mirror": """
mirror = client.mirror("lifetime")
mirror.wait_exact(30)
""",
    "a worker of tasks": """
worker = client.tasks.worker(slots=4)(print)
worker.start()
""",
    "a worker of jobs": """
worker = client.jobs("lifetime").worker(slots=4)(print)
worker.start()
""",
    "a lock": """
table.lock("lifetime", ttl=1).__enter__()
""",
    "a call": """
threading.Thread(target=client.tasks.lend, kwargs={"wait": 1000}, daemon=True).start()
""",
    "a client of asyncio": """
async def main():
    client = spindle.aio.Client(kv, feed=feed, tasks=tasks)
    mirror = await client.mirror("lifetime")
    await mirror.wait_exact(30)
    async def work(task):
        pass
    client.tasks.worker()(work).start()
asyncio.run(main())
""",
    "a child": """
mirror = client.mirror("lifetime")
mirror.wait_exact(30)
child = os.fork()
if child == 0:
    try:
        mirror.wait_exact(30)
    except spindle.Closed:
        sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
""",
    "children of busy threads": """
stopped = []
def work():
    while not stopped:
        table.set("a", "1")
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        try:
            table.get("a")
        except spindle.Closed:
            client.close()
            with spindle.Client(kv, timeout=30) as own:
                own.ping()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
stopped.append(1)
for thread in threads:
    thread.join()
""",
}


@pytest.mark.parametrize("what", ENDS)
def test_the_interpreter_ends_beside(what, shared_server):
    """A thread that is in the background does not hold it up, and a child has its own clients."""
    ends = [shared_server.endpoints[kind] for kind in ("kv", "feed", "tasks", "jobs")]
    program = PROGRAM + ENDS[what] + 'print("the end")'
    flags = ["-W", "ignore::DeprecationWarning"]
    ended = subprocess.run([sys.executable, *flags, "-c", program, *ends], capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "the end\n", "")


def open_now():
    """The descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="there is no /proc")
def test_a_thousand_clients_leave_nothing_behind(shared_server):
    ends = {kind: shared_server.endpoints[kind] for kind in ("feed", "tasks", "jobs")}
    gc.collect()
    before = open_now()
    gc.disable()
    try:
        for number in range(1000):
            with spindle.Client(shared_server.kv, timeout=PATIENCE, **ends) as client:
                client.ping()
                assert client.tasks.count() >= 0
                if number % 100 == 0:
                    client.mirror("lifetime").wait_exact(PATIENCE)
                    with client.tasks.worker(slots=2)(print):
                        pass
        assert open_now() <= before, "closing gives all back, without the help of the garbage collector"
    finally:
        gc.enable()
    for _ in range(20):
        client = spindle.Client(shared_server.kv, timeout=PATIENCE, **ends)
        client.ping()
        client.mirror("lifetime").wait_exact(PATIENCE)
        del client
    gc.collect()
    while open_now() > before:
        # The thread of a mirror that was dropped sees it in its next turn.
        gc.collect()
