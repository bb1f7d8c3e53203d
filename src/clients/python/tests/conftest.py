"""Fixtures: servers of both frontends, and clients of them."""

import faulthandler
import itertools
import os
import pathlib
import signal
import sys
import threading

import pytest
from server import Server

import spindle

sys.path.append(str(pathlib.Path(__file__).parents[4] / "tests/it"))
from specified import COMMANDS  # noqa: E402, F401  (the commands of the page of the protocol)

# How long a condition may take that will surely come.
PATIENCE = 30.0
# A test that takes longer shows where all its threads are, and ends the run.
TEST_SECONDS = 60
_NAMES = (f"table-{number}" for number in itertools.count())


def again(call, *errors):
    """Calls until there is no such error: a server that was started again is found in time."""
    while True:
        try:
            return call()
        except errors:
            pass


def wait_for_extensions(queue, count):
    """Waits until the only lease of a queue was extended so often. One that has ended fails."""
    before, extensions = float("inf"), 0
    while extensions < count:
        (task,) = queue.browse("lent")
        extensions += task.left > before
        before = task.left


@pytest.fixture(autouse=True)
def bound(request):
    """No test hangs, and none leaves servers behind."""

    def break_off():
        request.config.pluginmanager.getplugin("capturemanager").suspend_global_capture()
        print(f"{request.node.nodeid} takes more than {TEST_SECONDS} s", file=sys.__stderr__)
        faulthandler.dump_traceback(file=sys.__stderr__)
        for server in Server.RUNNING:
            os.kill(server, signal.SIGKILL)
        os._exit(1)

    timer = threading.Timer(TEST_SECONDS, break_off)
    timer.daemon = True
    timer.start()
    # If Python itself is stuck.
    faulthandler.dump_traceback_later(TEST_SECONDS + 10, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()
    timer.cancel()


@pytest.fixture(scope="session", params=["proxy", "native"])
def shared_server(request):
    """A server that tests share, each with its own tables."""
    server = Server("--frontend", request.param, "--feed", "--publish", "--tasks", "--jobs", "--events")
    yield server
    server.end()


@pytest.fixture(params=["proxy", "native"])
def own_server(request):
    """A server that a test may kill."""
    server = Server("--frontend", request.param, "--feed")
    yield server
    server.end()


@pytest.fixture
def ends(shared_server):
    """The endpoints of the other services, as arguments of a client."""
    return {kind: shared_server.endpoints[kind] for kind in ("feed", "publish", "tasks", "jobs", "events")}


@pytest.fixture
def client(shared_server, ends):
    with spindle.Client(shared_server.kv, timeout=PATIENCE, **ends) as client:
        yield client


@pytest.fixture
def name():
    """The name of a table that no other test has."""
    return next(_NAMES)


@pytest.fixture
def table(client, name):
    return client.table(name, create=True)
