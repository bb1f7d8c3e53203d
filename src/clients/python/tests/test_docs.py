"""The examples of the documentation run as they are printed."""

import ast
import asyncio
import doctest
import functools
import importlib
import importlib.util
import pathlib
import pkgutil
import queue
import re
import subprocess
import sys

import pytest
from conftest import PATIENCE

import spindle
from spindle import aio


class AwaitingParser(doctest.DocTestParser):
    """Examples are run by ``run_in_loop``, as lines of ``python -m asyncio`` are."""

    def get_examples(self, *arguments):
        examples = super().get_examples(*arguments)
        for example in examples:
            if "asyncio.run" not in example.source:
                example.source = f"run_in_loop({example.source!r}, globals())\n"
        return examples


def run_in_loop(loop, source, known):
    async def evaluate():
        result = eval(compile(source, "<example>", "single", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), known)
        if result is not None:
            await result

    loop.run_until_complete(evaluate())


def run_examples(client, names, parser, known):
    """Runs the examples of these modules. Returns their number."""
    attempted = 0
    for name in names:
        for table in client.tables():
            client.delete_table(table)
        for task in ("page-1", "page-2"):
            client.tasks.remove(task)
        for queue_name in client.queues():
            client.queue(queue_name).purge("ready", "delayed", "dead", "dropped")
        runner = doctest.DocTestRunner()
        for test in doctest.DocTestFinder(parser=parser).find(importlib.import_module(name), extraglobs=known):
            assert runner.run(test).failed == 0, test.name
        attempted += runner.tries
    return attempted


@pytest.fixture
def known(client, ends):
    """What the examples know."""
    modules = {"spindle": spindle, "asyncio": asyncio, "queue": queue}
    return {"client": client, "endpoint": client.endpoint, **modules, **ends}


HAS_CELERY = importlib.util.find_spec("celery") is not None
NAMES = ["spindle", *(module.name for module in pkgutil.walk_packages(spindle.__path__, "spindle.", lambda _: None))]
NAMES = [name for name in NAMES if HAS_CELERY or not name.startswith("spindle.celery")]


def test_the_examples_of_the_docstrings(client, known):
    names = [name for name in NAMES if not name.startswith("spindle.aio")]
    assert run_examples(client, names, doctest.DocTestParser(), known) > 40


def test_the_examples_of_the_docstrings_for_asyncio(client, ends, known):
    names = [name for name in NAMES if name.startswith("spindle.aio")]
    loop = asyncio.new_event_loop()
    own = aio.Client(client.endpoint, timeout=PATIENCE, **ends)
    known.update(client=own, run_in_loop=functools.partial(run_in_loop, loop))
    try:
        assert run_examples(client, names, AwaitingParser(), known) > 40
    finally:
        loop.run_until_complete(own.close())
        loop.close()


def test_the_programs_of_the_readme(client, shared_server):
    for table in client.tables():
        client.delete_table(table)
    page = pathlib.Path(__file__).parent.parent.joinpath("README.md").read_text()
    program = "\n".join(re.findall(r"```python\n(.*?)```", page, re.S))
    defaults = {5555: "kv", 5556: "publish", 5557: "tasks", 5559: "feed", 8080: "jobs", 8081: "events"}
    for port, kind in defaults.items():
        own = shared_server.endpoints[kind].split("://")[-1]
        program = program.replace(f"127.0.0.1:{port}", own)
    for queue_name in client.queues():
        client.queue(queue_name).purge("ready", "delayed", "dead", "dropped")
    known = {}
    exec(compile(program, "README.md", "exec"), known)
    known["client"].close()


@pytest.mark.skipif(not HAS_CELERY, reason="Celery is not installed")
def test_the_application_of_the_readme_is_one_of_celery():
    page = pathlib.Path(__file__).parent.parent.joinpath("README.md").read_text()
    (program,) = re.findall(r"```py\n(.*?)```", page, re.S)
    known = {}
    exec(compile(program, "README.md", "exec"), known)
    app = known["app"]
    assert app.connection_for_write().transport.driver_name == "spindle"
    assert type(app.backend).__name__ == "SpindleBackend" and app.conf.broker_transport_options == {"lease": 60}


def test_the_package_is_no_command_line_and_says_so():
    ran = subprocess.run([sys.executable, "-m", "spindle", "get"], capture_output=True, text=True)
    assert ran.returncode == 1 and ran.stdout == "" and "help(spindle.Client)" in ran.stderr
    for name in spindle.__all__:
        if isinstance(getattr(spindle, name), type):
            assert getattr(spindle, name).__doc__, name
