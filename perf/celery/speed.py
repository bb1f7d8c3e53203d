"""Celery's tasks a second, ``-P threads -c 8``: Spindle beside Redis, by turns in one run.

    SPINDLE_BIN=target/release/spindle target/venv/bin/python perf/celery/speed.py [TASKS] [ROUNDS]

Each broker has a queue of so many tasks that do nothing, and one worker. Published: tasks a second of one thread. Run:
tasks a second from the first one's begin to the last one's, with ``acks_late`` and without. It needs Celery, redis and
``redis-server``. Both servers keep all on the same disk.
"""

import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Broker:
    """A server with its folder."""

    def __init__(self, name, folder):
        self.name, self.port = name, free_port()
        path = pathlib.Path(folder, name)
        path.mkdir()
        if name == "spindle":
            ports = ["--kv", f"tcp://127.0.0.1:{free_port()}", "--publish", "off"]
            tasks = ["--tasks", f"tcp://127.0.0.1:{self.port}", "--data", str(path)]
            command = [os.path.abspath(os.environ["SPINDLE_BIN"]), "serve", *ports, *tasks]
            self.url = f"spindle://127.0.0.1:{self.port}//"
        else:
            fsync = "always" if name == "redis-always" else "everysec"
            durable = ["--appendonly", "yes" if fsync == "always" else "no", "--appendfsync", fsync, "--save", ""]
            command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(path), *durable]
            self.url = f"redis://127.0.0.1:{self.port}/0"
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


PUBLISH = """
import sys, time, speed_app
count = int(sys.argv[1])
with speed_app.app.producer_or_acquire() as producer:
    begun = time.monotonic()
    for _ in range(count):
        speed_app.nothing.apply_async((count,), producer=producer)
    print(count / (time.monotonic() - begun))
"""


def measure(broker, acks, count, folder):
    """Tasks a second: published, and run."""
    result = pathlib.Path(folder, "result")
    result.unlink(missing_ok=True)
    environment = {**os.environ, "SPEED_BROKER": broker.url, "SPEED_ACKS": acks, "SPEED_RESULT": str(result)}
    environment.update(C_FORCE_ROOT="1", PYTHONPATH=str(HERE.parents[1] / "src/clients/python"))
    published = subprocess.run(
        [sys.executable, "-c", PUBLISH, str(count)], cwd=HERE, env=environment, check=True, capture_output=True, text=True
    )
    flags = ["-P", "threads", "-c", "8", "-l", "error", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "speed_app", "worker", *flags],
        cwd=HERE,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not (result.exists() and result.read_text()):
        time.sleep(0.05)
    worker.terminate()
    worker.wait()
    return float(published.stdout), (count - 1) / float(result.read_text())


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    names = ("spindle", "redis-always", "redis")
    found = {}
    with tempfile.TemporaryDirectory(prefix="speed-", dir=os.environ.get("SPEED_FOLDER")) as folder:
        brokers = [Broker(name, folder) for name in names]
        try:
            for _ in range(rounds):
                for acks in ("early", "late"):
                    for broker in brokers:
                        published, run = measure(broker, acks, count, folder)
                        print(f"{broker.name:13} acks {acks:5}  published {published:7.0f}/s  run {run:7.0f}/s", flush=True)
                        found.setdefault((acks, broker.name), []).append((published, run))
        finally:
            for broker in brokers:
                broker.end()
    medians = {key: tuple(statistics.median(column) for column in zip(*values)) for key, values in found.items()}
    for (acks, name), (published, run) in medians.items():
        ours = medians[acks, "spindle"]
        ratios = "" if name == "spindle" else f"  spindle/{name}: published {ours[0] / published:.2f}, run {ours[1] / run:.2f}"
        print(f"median {name:13} acks {acks:5}  published {published:7.0f}/s  run {run:7.0f}/s{ratios}")
    print(json.dumps({f"{acks} {name}": values for (acks, name), values in found.items()}))


if __name__ == "__main__":
    shutil.which("redis-server") or sys.exit("redis-server is not there: install it")
    main()
