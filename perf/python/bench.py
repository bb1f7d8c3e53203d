"""Compares the Python package with redis-py and pymemcache, each against its own server, and measures a mirror.

    target/venv/bin/pip install redis hiredis pymemcache      # for the comparison, beside what tests/run installs
    cargo build --profile dist
    target/venv/bin/python perf/python/bench.py [--rounds 60] [--seconds 0.05]

All servers run all the time. In each round every client has its turn, in random order, so that a slow moment of
the machine meets all of them. It prints the median of the rounds, and the lowest and highest tenth, as Markdown. The
processor time of the client says what a call costs, also on a machine that does other things.
"""

import argparse
import asyncio
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "src/clients/python"))

import spindle  # noqa: E402

VALUE = "v" * 100
MANY = [f"key-{number}" for number in range(1000)]
# Changes of the feed that are merged again from memory.
REPLAYED = 200_000
WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
import spindle
table = spindle.Client(sys.argv[2], timeout=60).table("followed")
print("begun", flush=True)
turn = 0
while True:
    turn += 1
    table.set_many({f"key-{turn * 1000 % 20000 + number}": f"{turn:0100}" for number in range(1000)})
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def wait_for_port(port):
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.01)


class Servers:
    """Processes that end with the bench."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="bench-python-")
        self.processes = []

    def spindle(self, frontend, *flags):
        """The endpoints of requests and of the feed of a server with this frontend."""
        program = [os.environ.get("SPINDLE_BIN", ROOT / "target/dist/spindle"), "serve", "--kv", "tcp://127.0.0.1:*", "--publish", "off"]
        process = self.start([*program, "--frontend", frontend, "--feed", "tcp://127.0.0.1:*", *flags])
        for line in process.stdout:
            name, _, rest = line.decode().strip().partition(" ")
            if name == "kv":
                endpoint = rest
            if name == "feed":
                feed = rest
            if name == "ready":
                return endpoint, feed
        raise SystemExit("the server does not start")

    def other(self, *program):
        """The port of another server, whose program gets it as its last argument."""
        port = free_port()
        self.start([*program, str(port)])
        wait_for_port(port)
        return port

    def start(self, program):
        process = subprocess.Popen(
            program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=self.folder.name
        )
        self.processes.append(process)
        return process

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()
        self.folder.cleanup()


def rate(call, seconds):
    """Calls a second, and seconds of this process's processor time for each."""
    begun, worked, count = time.perf_counter(), time.process_time(), 0
    while True:
        for _ in range(20):
            call()
        count += 20
        elapsed = time.perf_counter() - begun
        if elapsed > seconds:
            return count / elapsed, (time.process_time() - worked) / count


def compare(name, contenders, rounds, seconds, scale=1):
    """Prints a line for each contender, which take turns."""
    rates = {contender: [] for contender in contenders}
    for number in range(rounds + 1):
        order = list(contenders)
        random.shuffle(order)
        for contender in order:
            found = rate(contenders[contender], seconds)
            if number:
                rates[contender].append(found)
    for contender, found in rates.items():
        report(name, contender, [(calls * scale, cost) for calls, cost in found])


def report(name, contender, found):
    """Prints a line: calls a second, and the processor time of one on a quiet moment of the machine."""
    calls = [calls for calls, _ in found]
    tenths = statistics.quantiles(calls, n=10, method="inclusive")
    cost = statistics.quantiles([cost for _, cost in found], n=10, method="inclusive")[0]
    line = f"{statistics.median(calls):,.0f} | {tenths[0]:,.0f} | {tenths[-1]:,.0f} | {cost * 1e6:,.1f}"
    print(f"| {name} | {contender} | {line} |", flush=True)


def contenders(servers):
    """The get, set, get_many of each client, over tables that have all keys."""
    gets, sets, manys = {}, {}, {}

    def add(name, get, put, many):
        for key in MANY:
            put(key, VALUE)
        gets[name], sets[name], manys[name] = lambda: get("key-7"), lambda: put("key-7", VALUE), lambda: many(MANY)

    for frontend in ("native", "proxy"):
        table = spindle.Client(servers.spindle(frontend)[0], timeout=60).table("t", create=True)
        add(f"spindle, --frontend {frontend}", table.get, table.set, table.get_many)
    try:
        import redis
        from redis._parsers import _HiredisParser, _RESP2Parser
        from pymemcache.client.base import Client as Memcache
    except ImportError as error:
        print(f"only Spindle: {error}", file=sys.stderr)
        return gets, sets, manys
    port = servers.other("redis-server", "--save", "", "--port")
    for name, parser in (("redis-py, hiredis", _HiredisParser), ("redis-py, plain", _RESP2Parser)):
        pool = redis.ConnectionPool(host="127.0.0.1", port=port, parser_class=parser)
        client = redis.Redis(connection_pool=pool)
        add(name, client.get, client.set, client.mget)
    memcache = Memcache(("127.0.0.1", servers.other("memcached", "-u", "nobody", "-p")), no_delay=True)
    add("pymemcache", memcache.get, lambda key, value: memcache.set(key, value, noreply=False), memcache.get_many)
    return gets, sets, manys


async def concurrent(servers, rounds):
    """Prints GETs a second of 64 tasks of asyncio that share a client."""
    clients = {}
    for frontend in ("native", "proxy"):
        client = spindle.aio.Client(servers.spindle(frontend)[0], timeout=60)
        table = await client.table("t", create=True)
        await table.set("key-7", VALUE)
        clients[f"spindle.aio, --frontend {frontend}"] = table.get
    try:
        import redis.asyncio

        client = redis.asyncio.Redis(port=servers.other("redis-server", "--save", "", "--port"))
        await client.set("key-7", VALUE)
        clients["redis.asyncio, hiredis"] = client.get
    except ImportError:
        pass

    async def calls(get):
        for _ in range(30):
            await get("key-7")

    found = {name: [] for name in clients}
    for number in range(rounds + 1):
        for name in random.sample(list(clients), len(clients)):
            begun, worked = time.perf_counter(), time.process_time()
            await asyncio.gather(*(calls(clients[name]) for _ in range(64)))
            cost = (time.process_time() - worked) / (64 * 30)
            if number:
                found[name].append((64 * 30 / (time.perf_counter() - begun), cost))
    for name, rates in found.items():
        report("get", name, rates)


def follow(servers, seconds):
    """A mirror of a table that another process writes as fast as it can."""
    endpoint, feed = servers.spindle("native")
    with spindle.Client(endpoint, timeout=60, feed=feed) as client:
        client.create_table("followed")
        mirror = client.mirror("followed")
        mirror.wait_exact(60)
        writer = servers.start([sys.executable, "-c", WRITER, str(ROOT / "src/clients/python"), endpoint])
        writer.stdout.readline()
        time.sleep(1)
        changes, begun = mirror.metrics["changes"], time.perf_counter()
        time.sleep(seconds)
        followed = (mirror.metrics["changes"] - changes) / (time.perf_counter() - begun)
        writer.kill()
        writer.wait()
        begun = time.perf_counter()
        mirror.wait_exact(60)
        print(f"| a mirror beside its writer, changes a second | {followed:,.0f} |")
        print(f"| until it is exact again after the last write, ms | {(time.perf_counter() - begun) * 1000:,.0f} |")
        assert mirror.metrics["differences"] == 0
        replay(client, mirror)


def replay(client, mirror):
    """Merges changes of the feed from memory: what the mirror could do alone on a core."""
    from spindle import _copy, _feed, _xxh3
    from spindle._follower import Follower

    state = _feed.state_of(client._driver.call(_feed.state_request(b"followed"), 60))
    position = state.position._replace(sequence=max(state.oldest, state.position.sequence - REPLAYED))
    payloads = []
    while position.sequence < state.position.sequence:
        payloads += client._driver.call(_feed.changes_request(b"followed", position), 60)[1:]
        last = _feed.decode(payloads[-1])
        position = last.position._replace(sequence=last.position.sequence + len(last.changes))
    for name, function in (("xxhash", _xxh3.xxh3_64), ("Python", _xxh3.pure)):
        _copy.xxh3_64 = function
        follower = Follower()
        first = _feed.decode(payloads[0]).position
        follower.life, follower.next, follower._seen = (first.epoch, first.incarnation), first.sequence, first.sequence
        follower._stage, begun, hashing = 4, time.perf_counter(), 0.0
        for index, payload in enumerate(payloads):
            follower.receive(_feed.decode(payload))
            if index % 100 == 99:
                # A bookmark, whose digest is compared.
                at = time.perf_counter()
                follower.copy.digest()
                hashing += time.perf_counter() - at
        elapsed = time.perf_counter() - begun
        print(f"| merged from memory, hashes in {name}, changes a second | {follower.changes / elapsed:,.0f} |")
        print(f"| … share of the time that is hashing | {hashing / elapsed:.0%} |")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rounds", type=int, default=60)
    arguments.add_argument("--seconds", type=float, default=0.05)
    given = arguments.parse_args()
    servers = Servers()
    try:
        gets, sets, manys = contenders(servers)
        columns = "median | lowest tenth | highest tenth | processor time of the client, µs a call |"
        lines = "\n|---|---|---:|---:|---:|---:|"
        print(f"| one thread, calls a second | client | {columns}{lines}")
        compare("get", gets, given.rounds, given.seconds)
        compare("set", sets, given.rounds, given.seconds)
        print(f"\n| get_many of 1,000 keys, keys a second | client | {columns}{lines}")
        compare("get_many", manys, given.rounds, given.seconds, scale=len(MANY))
        print(f"\n| 64 tasks of asyncio, calls a second | client | {columns}{lines}")
        asyncio.run(concurrent(servers, given.rounds // 2))
        print("\n| mirror | |\n|---|---:|")
        follow(servers, 5)
    finally:
        servers.end()


if __name__ == "__main__":
    main()
