"""Real workers of Celery, as processes of their own."""

import os
import pathlib
import signal
import subprocess
import sys

from server import Server

import spindle

HERE = pathlib.Path(__file__).parent


def urls(server, virtual_host="", login=""):
    """The environment of an application whose broker and results are this server's. ``login``: ``user:password@``."""
    kv, tasks, publish = (server.endpoints[name][6:] for name in ("kv", "tasks", "publish"))
    return {
        "TEST_BROKER": f"spindle://{login}{tasks}/{virtual_host}",
        "TEST_BACKEND": f"spindle://{login}{kv}/?publish={publish}",
        "TEST_KV": server.kv,
    }


class Worker:
    """A worker with its log. Leaving it ends it with all its processes."""

    def __init__(self, server, *flags, lease="2", name="one", login=""):
        self.log = server.path(f"{name}.log")
        environment = {**os.environ, **urls(server, login=login), "TEST_LEASE": lease, "C_FORCE_ROOT": "1"}
        environment["PYTHONPATH"] = str(pathlib.Path(spindle.__file__).parents[1])
        program = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "-n", f"{name}@test", "-l", "info", *flags]
        self.process = subprocess.Popen(
            program,
            cwd=HERE,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self.log.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        Server.RUNNING.add(self.process.pid)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def text(self):
        return self.log.read_text(errors="replace")

    def terminate(self):
        """SIGTERM, and waits for the warm shutdown."""
        self.process.terminate()
        self.process.wait()

    def kill(self):
        """kill -9 of the worker and its children."""
        Server.RUNNING.discard(self.process.pid)
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
