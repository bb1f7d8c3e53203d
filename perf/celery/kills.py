"""Rounds of ``kill -9`` of the server, of workers and of their processes, while tasks are published and run.

    SPINDLE_BIN=target/release/spindle target/venv/bin/python perf/celery/kills.py [ROUNDS] [SEED] [WHAT…]

WHAT is killed: ``server``, ``worker`` or ``process`` (of the pool prefork). Without it all are. Three workers (prefork, threads, solo) with ``acks_late`` and ``reject_on_worker_lost``. Tasks are plain, with a countdown,
with priorities, with retries, and in chords of four. Each writes a line when it has run. At the end each task whose
publish was acknowledged has a line. How many have more is printed: Celery runs a task again when it does not know its
end. The status is 1 if one is lost.
"""

import collections
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

HERE = pathlib.Path(__file__).parent
PACKAGE = HERE.parents[1] / "src/clients/python"
sys.path[:0] = [str(PACKAGE), str(HERE)]
POOLS = (("prefork", "2"), ("threads", "4"), ("solo", "1"))


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Run:
    """The server and its workers."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.ports = {name: free_port() for name in ("kv", "publish", "tasks")}
        os.environ["KILLS_BROKER"] = f"spindle://127.0.0.1:{self.ports['tasks']}//"
        os.environ["KILLS_BACKEND"] = f"spindle://127.0.0.1:{self.ports['kv']}/?publish=127.0.0.1:{self.ports['publish']}"
        os.environ["KILLS_NOTES"] = str(self.folder / "notes")
        os.environ.update(PYTHONPATH=str(PACKAGE), C_FORCE_ROOT="1")
        self.log = (self.folder / "log").open("ab")
        self.server = None
        self.workers = {}
        self.start_server()
        for pool in POOLS:
            self.start_worker(pool)

    def start_server(self):
        ends = [part for name, port in self.ports.items() for part in (f"--{name}", f"tcp://127.0.0.1:{port}")]
        command = [os.path.abspath(os.environ["SPINDLE_BIN"]), "serve", *ends, "--max-value", "1M"]
        command += ["--data", str(self.folder / "data")]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        for line in self.server.stdout:
            if line.strip() == "ready":
                return
        raise SystemExit(f"the server does not start: {self.server.wait()}")

    def start_worker(self, pool):
        name, count = pool
        flags = ["-A", "kills_app", "worker", "-P", name, "-c", count, "-n", f"{name}@kills", "-l", "warning"]
        command = [sys.executable, "-m", "celery", *flags]
        worker = subprocess.Popen(
            command, cwd=HERE, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True
        )
        self.workers[pool] = worker

    def kill_server(self, pause):
        self.server.kill()
        self.server.wait()
        self.server.stdout.close()
        time.sleep(pause)
        self.start_server()

    def kill_worker(self, pool):
        os.killpg(self.workers[pool].pid, signal.SIGKILL)
        self.workers[pool].wait()
        self.start_worker(pool)

    def kill_child(self):
        """One process of the pool prefork. False: there is none yet."""
        parent = self.workers[POOLS[0]].pid
        children = pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        if not children:
            return False
        os.kill(int(random.choice(children)), signal.SIGKILL)
        return True

    def end(self):
        for worker in self.workers.values():
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        self.server.kill()
        self.server.wait()
        self.log.close()


class Publisher(threading.Thread):
    """Publishes tasks until it is stopped, and knows which publishes were acknowledged."""

    def __init__(self):
        super().__init__(daemon=True)
        import kills_app

        self.app = kills_app
        self.acknowledged = []
        self.failed = 0
        self.stopped = threading.Event()

    def publish(self, number):
        kind, name = number % 5, f"{('plain', 'countdown', 'priority', 'again', 'chord')[number % 5]}-{number}"
        if kind == 0:
            self.app.work.delay(name)
        elif kind == 1:
            self.app.work.apply_async((name,), countdown=random.uniform(0, 2))
        elif kind == 2:
            self.app.work.apply_async((name,), priority=random.randrange(10))
        elif kind == 3:
            self.app.again.delay(name)
        else:
            from celery import chord

            chord((self.app.work.s(f"{name}-part-{part}") for part in range(4)), self.app.body.s(name))()
        return name

    def run(self):
        number = 0
        while not self.stopped.is_set():
            number += 1
            try:
                self.acknowledged.append(self.publish(number))
            except Exception as error:
                self.failed += 1
                print(f"not published: {type(error).__name__}: {error}", flush=True)
                traceback.print_exc(file=sys.stdout)
            time.sleep(0.01)


def drained(run):
    """Waits until no task is ready, delayed or lent. Returns how many are dead."""
    import spindle

    with spindle.Client(f"127.0.0.1:{run.ports['kv']}", tasks=f"127.0.0.1:{run.ports['tasks']}", timeout=30) as client:
        end = time.monotonic() + 300
        while time.monotonic() < end:
            counts = client.queue("celery").counts()
            if counts.ready == counts.delayed == counts.lent == 0:
                # A retry is published before its task is acknowledged, and so is the body of a chord.
                return counts.dead
            time.sleep(0.2)
        raise SystemExit(f"the queue is not empty after 300 s: {counts}")


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(10_000)
    kinds = sys.argv[3:] or ["server", "server", "worker", "worker", "process"]
    random.seed(seed)
    killed = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="kills-", dir=os.environ.get("KILLS_FOLDER")) as folder:
        run = Run(folder)
        publisher = Publisher()
        publisher.start()
        try:
            for _ in range(rounds):
                time.sleep(random.uniform(0.3, 2.0))
                what = random.choice(kinds)
                if what == "server":
                    run.kill_server(random.uniform(0, 1.0))
                elif what == "worker":
                    run.kill_worker(random.choice(POOLS))
                elif not run.kill_child():
                    # The worker is just beginning.
                    what = "worker"
                    run.kill_worker(POOLS[0])
                killed[what] += 1
            publisher.stopped.set()
            publisher.join()
            dead = drained(run)
            lines = collections.Counter(pathlib.Path(os.environ["KILLS_NOTES"]).read_text().split("\n"))
            control = publisher.app.app.control
            print("inspect:", sorted(control.inspect(timeout=5).ping() or {}))
        finally:
            run.end()
        lost = [name for name in publisher.acknowledged if not lines[name]]
        twice = collections.Counter(name.split("-")[0] for name in publisher.acknowledged if lines[name] > 1)
        wrong = [line for line in lines if line.startswith("wrong")]
        print(f"seed {seed}, {rounds} rounds, kill -9 of {dict(killed)}")
        print(f"published {len(publisher.acknowledged)}, not published {publisher.failed}, lost {len(lost)} {lost[:9]}")
        print(f"ran more than once {sum(twice.values())} {dict(twice)}, dead {dead}, wrong results {len(wrong)} {wrong[:3]}")
        if lost or wrong:
            log = pathlib.Path(folder, "log").read_text(errors="replace")
            pathlib.Path("/tmp/kills.log").write_text(log)
        sys.exit(1 if lost or wrong or dead else 0)


if __name__ == "__main__":
    main()
