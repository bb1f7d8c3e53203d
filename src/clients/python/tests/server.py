"""A real server for the tests. ``SPINDLE_BIN`` names the program."""

import os
import pathlib
import signal
import socket
import subprocess
import tempfile

import zmq

import spindle


def nowhere():
    """An endpoint at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


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
        self.endpoints["publish"] = "tcp://127.0.0.1:*" if "--publish" in flags else "off"
        if "--events" in flags:
            self.endpoints["events"], self.endpoints["events-queue"] = "127.0.0.1:0", "tcp://127.0.0.1:*"
        self.process = None
        self.prepare()
        self.start()

    def prepare(self):
        """Makes what the server needs, in its folder."""

    def start(self):
        """Starts it, and waits until it is ready."""
        arguments = ["serve", "--data", str(self.path("data"))]
        arguments += [flag for flag in self.flags if flag[2:] not in self.NAMES]
        for name, endpoint in self.endpoints.items():
            arguments += [f"--{name}", endpoint]
        program = os.environ["SPINDLE_BIN"]
        self.process = subprocess.Popen([program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.RUNNING.add(self.process.pid)
        for line in self.process.stdout:
            name, _, endpoint = line.strip().partition(" ")
            if name == "ready":
                return
            if name in self.NAMES:
                self.endpoints[name] = endpoint
        raise AssertionError(f"the server does not start: {self.process.wait()}")

    def path(self, name):
        """A file in the folder of the server."""
        return pathlib.Path(self.folder.name, name)

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


class Guarded(Server):
    """A server with users and CURVE, and with TLS where the flags say so."""

    # What each user may do. The password is the name, backwards.
    USERS = {
        "root": ("--admin",),
        "ada": ("--own", "eu-", "--tasks", "write", "--jobs-write", "mail"),
        "bea": ("--tasks-write", "kombu.", "--tasks-write", "table-"),
        "eve": ("--read", "eu-", "--tasks", "read", "--jobs-read", "mail"),
    }
    PEM = pathlib.Path(__file__).parent / "localhost.pem"
    TLS = ("--tls-cert", str(PEM), "--tls-key", str(PEM))

    def prepare(self):
        self.server_key = self.keygen("server")
        self.flags += ("--curve-key", str(self.path("server")), "--users", str(self.path("users")))
        for name in self.USERS:
            self.keygen(name)
            self.add(name)

    def keygen(self, name):
        """Makes a secret key, and returns the public one."""
        return self.run("keygen", self.path(name)).strip()

    def add(self, name):
        """Adds a user with a password and a key."""
        flags = ["--users", self.path("users"), f"--curve={self.keys(name).public_key.decode()}", "--password-stdin"]
        self.run("user", "add", name, *flags, *self.USERS[name], given=name[::-1])

    def remove(self, name):
        """Takes a user away. The server notices it within a second."""
        self.run("user", "remove", name, "--users", self.path("users"))

    def keys(self, name):
        """The keys with which a user logs in."""
        secret = self.path(name).read_text().strip().encode()
        return spindle.Curve(self.server_key, zmq.curve_public(secret), secret)

    def login(self, name, mechanism="plain"):
        """The arguments of a client of this user."""
        if mechanism == "curve":
            return {"curve": self.keys(name)}
        return {"user": name, "password": name[::-1]}

    @staticmethod
    def run(*arguments, given=""):
        """Runs a command of the program, and returns what it prints."""
        command = [os.environ["SPINDLE_BIN"], *map(str, arguments)]
        return subprocess.run(command, input=given, check=True, capture_output=True, text=True).stdout
