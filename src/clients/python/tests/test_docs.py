"""The examples of the documentation run as they are printed."""

import asyncio
import doctest
import importlib
import pathlib
import pkgutil
import queue
import re
import subprocess
import sys

import spindle


def test_the_examples_of_the_docstrings(client, shared_server):
    names = [module.name for module in pkgutil.walk_packages(spindle.__path__, "spindle.")]
    attempted = 0
    for name in ["spindle", *names]:
        module = importlib.import_module(name)
        for table in client.tables():
            client.delete_table(table)
        known = {
            "spindle": spindle,
            "asyncio": asyncio,
            "client": client,
            "queue": queue,
            "endpoint": shared_server.kv,
            **{kind: shared_server.endpoints[kind] for kind in ("feed", "tasks", "jobs")},
        }
        result = doctest.testmod(module, extraglobs=known)
        assert result.failed == 0, name
        attempted += result.attempted
    assert attempted > 40


def test_the_programs_of_the_readme(client, shared_server):
    for table in client.tables():
        client.delete_table(table)
    page = pathlib.Path(__file__).parent.parent.joinpath("README.md").read_text()
    program = "\n".join(re.findall(r"```python\n(.*?)```", page, re.S))
    defaults = {5555: "kv", 5557: "tasks", 5559: "feed", 8080: "jobs"}
    for port, kind in defaults.items():
        own = shared_server.endpoints[kind].split("://")[-1]
        program = program.replace(f"127.0.0.1:{port}", own)
    known = {}
    exec(compile(program, "README.md", "exec"), known)
    known["client"].close()


def test_the_package_is_no_command_line_and_says_so():
    ran = subprocess.run([sys.executable, "-m", "spindle", "get"], capture_output=True, text=True)
    assert ran.returncode == 1 and ran.stdout == "" and "help(spindle.Client)" in ran.stderr
    for name in spindle.__all__:
        if isinstance(getattr(spindle, name), type):
            assert getattr(spindle, name).__doc__, name
