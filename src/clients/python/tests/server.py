"""A real server for the tests. ``SPINDLE_BIN`` names the program."""

import os
import signal
import subprocess
import tempfile


class Server:
    """A server on ports that the system gives. It keeps them when it is started again."""

    NAMES = ("kv", "publish", "feed", "tasks", "jobs", "events", "events-queue")

    # Process ids of servers that run. A run that is broken off ends them.
    RUNNING = set()

    def __init__(self, *flags):
        self.folder = tempfile.TemporaryDirectory(prefix="spindle-python-")
        self.flags = flags
        self.endpoints = {"kv": "tcp://127.0.0.1:*"}
        if "--feed" in flags:
            self.endpoints["feed"] = "tcp://127.0.0.1:*"
        if "--tasks" in flags:
            self.endpoints["tasks"] = "tcp://127.0.0.1:*"
        if "--jobs" in flags:
            self.endpoints["jobs"] = "127.0.0.1:0"
        self.process = None
        self.start()

    def start(self):
        """Starts it, and waits until it is ready."""
        arguments = [os.environ["SPINDLE_BIN"], "serve", "--publish", "off", "--data", self.folder.name]
        arguments += [flag for flag in self.flags if flag not in ("--feed", "--tasks", "--jobs")]
        for name, endpoint in self.endpoints.items():
            arguments += [f"--{name}", endpoint]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.RUNNING.add(self.process.pid)
        for line in self.process.stdout:
            name, _, endpoint = line.strip().partition(" ")
            if name == "ready":
                return
            if name in self.NAMES:
                self.endpoints[name] = endpoint
        raise AssertionError(f"the server does not start: {self.process.wait()}")

    @property
    def kv(self):
        return self.endpoints["kv"]

    def kill(self):
        """kill -9"""
        self.process.kill()
        self.process.wait()
        self.RUNNING.discard(self.process.pid)
        self.process.stdout.close()

    def restart(self):
        """kill -9, and a new start at the same endpoints."""
        self.kill()
        self.start()

    def pause(self):
        """The server answers nothing, until it resumes."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def end(self):
        if self.process.poll() is None:
            self.kill()
        self.folder.cleanup()
