"""Mirrors: exact copies, whatever happens to the feed, the connections, the server and the table."""

import asyncio
import os
import random
import threading

import pytest
import xxhash
from conftest import PATIENCE
from cutter import Cutter
from server import Server

import spindle
from spindle import _xxh3, aio


def truth(table):
    """Keys with values and versions, as the server has them."""
    return {key: (table.entry(key).value, table.entry(key).version) for key in table.scan()}


def copy(mirror):
    return {key: (mirror.entry(key).value, mirror.entry(key).version) for key in mirror}


def wait_for_expiries(table):
    """Waits until no element is about to expire."""

    def is_expiring(key):
        try:
            return (table.entry(key).ttl or 60) < 5
        except spindle.KeyNotFound:
            return False

    while any(is_expiring(key) for key in table.scan("key-")):
        threading.Event().wait(0.05)


def digest(table):
    """The digest of the elements that the server has. None if one expires meanwhile."""
    try:
        versions = {key: table.entry(key).version for key in table.scan()}
    except spindle.KeyNotFound:
        return None
    raw = (key if isinstance(key, bytes) else key.encode() for key in versions)
    return sum(map(xxhash.xxh3_64_intdigest, raw, versions.values())) & ((1 << 64) - 1)


def caught_up(client, table, mirror):
    """Waits until the mirror has all that was written before, and is exact. Returns its position."""
    while True:
        state = spindle._feed.state_of(client._driver.call([b"\x12", table.name], PATIENCE))
        if state.digest == digest(table):
            break
    while mirror.wait_exact(PATIENCE) < state.position:
        threading.Event().wait(0.01)
    return mirror.wait_exact(PATIENCE)


def write(table, rounds, seed):
    """A thread that sets, deletes, expires and touches elements."""
    rng = random.Random(seed)
    for number in range(rounds):
        key = f"key-{rng.randrange(200)}"
        act = rng.randrange(10)
        if act < 5:
            table.set(key, f"{seed}:{number}", ttl=1 if act == 0 else 0)
        elif act < 8:
            table.delete(key)
        elif act < 9:
            table.touch(key, 60)
        else:
            table.set_many({f"key-{rng.randrange(200)}": f"{seed}:{number}" for _ in range(20)})


@pytest.mark.parametrize("size", [*range(300), *range(1000, 1100), 2047, 2048, 2049, 4095, 4096])
def test_the_hash_in_python_is_that_of_the_reference(size):
    rng = random.Random(size)
    for seed in (0, 1, (1 << 64) - 1, rng.getrandbits(64), rng.getrandbits(33)):
        key = rng.randbytes(size)
        assert _xxh3.pure(key, seed) == xxhash.xxh3_64_intdigest(key, seed)


def test_a_copy_is_exact_after_writers_and_expiries(client, table, monkeypatch):
    monkeypatch.setattr(spindle._copy, "xxh3_64", _xxh3.pure)
    table.set_many({f"old-{number}": str(number) for number in range(3000)})
    threads = [threading.Thread(target=write, args=(table, 300, seed)) for seed in range(3)]
    [thread.start() for thread in threads]
    with client.mirror(table.name) as mirror:
        [thread.join() for thread in threads]
        wait_for_expiries(table)
        position = caught_up(client, table, mirror)
        assert copy(mirror) == truth(table) and len(mirror) == len(table) > 3000
        assert mirror.exact and mirror.at == position and position.incarnation > 0
        assert mirror.metrics["differences"] == 0
        verified = mirror.metrics["verified"]
        table["a"] = "1"
        while mirror.metrics["verified"] == verified or "a" not in mirror:
            threading.Event().wait(0.01)
        assert mirror["a"] == b"1" and mirror.get("b") is None and mirror.get("b", 1) == 1
        assert mirror.metrics["differences"] == 0, "the digest of the server is that of the copy"
        with pytest.raises(spindle.KeyNotFound):
            mirror["b"]
        with pytest.raises(KeyError):
            mirror.entry("b")
        at, elements = mirror.snapshot()
        assert at == mirror.at and elements == dict(mirror.items())
    assert not mirror.exact and mirror["a"] == b"1", "the copy stays readable"
    with pytest.raises(spindle.Closed):
        mirror.wait_exact(1)


def test_each_change_is_reported_in_order(client, name):
    table = client.table(name, create=True, codec=spindle.JSON)
    reported, ended = [], threading.Event()
    mirror = client.mirror(name, codec=spindle.JSON, keys=spindle.TEXT)
    mirror.wait_exact(PATIENCE)

    async def coroutine(change):
        raise AssertionError("nobody awaits it")

    with pytest.raises(TypeError, match="plain function"):
        mirror.on_change(coroutine)

    @mirror.on_change
    def fails(change):
        raise RuntimeError("this listener fails, and the others continue")

    @mirror.on_change
    def listen(change):
        reported.append((change.key, change.value, change.cause))
        if change.key == "end":
            ended.set()

    def wait_for(count):
        while len(reported) < count:
            threading.Event().wait(0.005)

    table.set("a", {"n": 1})
    wait_for(1)
    table.set("a", {"n": 2})
    wait_for(2)
    table.touch("a", 100)
    wait_for(3)
    table.delete("a")
    wait_for(4)
    table.set("b", 1, ttl=1)
    wait_for(6)
    table.set("end", None)
    assert ended.wait(PATIENCE)
    assert reported == [
        ("a", {"n": 1}, "set"),
        ("a", {"n": 2}, "set"),
        ("a", {"n": 2}, "touch"),
        ("a", None, "delete"),
        ("b", 1, "set"),
        ("b", None, "expire"),
        ("end", None, "set"),
    ]
    table.drop()
    wait_for(8)
    assert reported[7] == ("end", None, "delete with the table")
    mirror.close()


def test_tables_that_come_and_go(client, name):
    with client.mirror(name) as mirror:
        assert mirror.wait_exact(PATIENCE).incarnation == 0 and len(mirror) == 0
        lives = []
        for life in range(4):
            table = client.table(name, create=True)
            table.set_many({f"{life}-{number}": str(life) for number in range(10 * life + 1)})
            position = caught_up(client, table, mirror)
            assert copy(mirror) == truth(table) and len(mirror) == 10 * life + 1
            lives.append(position.incarnation)
            table.drop()
        assert lives == sorted(set(lives)) and lives[0] > 0
        while mirror.wait_exact(PATIENCE).incarnation:
            threading.Event().wait(0.01)
        assert len(mirror) == 0


def test_connections_that_are_cut_and_messages_that_are_missed(client, table, shared_server):
    feed, requests = Cutter(shared_server.endpoints["feed"]), Cutter(shared_server.kv)
    try:
        with spindle.Client(requests.endpoint, timeout=PATIENCE, feed=feed.endpoint) as own:
            mirror = own.mirror(table.name)
            mirror.wait_exact(PATIENCE)
            scans = mirror.metrics["scans"]
            for turn in range(6):
                (feed if turn % 2 == 0 else requests).cut()
                write(table, 100, turn)
                caught_up(client, table, mirror)
            assert mirror.metrics["scans"] == scans, "gaps are filled from the history, without a scan"
            writer = threading.Thread(target=write, args=(table, 600, 7))
            writer.start()
            while writer.is_alive():
                random.choice((feed, requests)).cut()
                threading.Event().wait(0.03)
            writer.join()
            wait_for_expiries(table)
            caught_up(client, table, mirror)
            assert copy(mirror) == truth(table)
            assert mirror.metrics["gaps"] > 0 and mirror.metrics["differences"] == 0
    finally:
        feed.close()
        requests.close()


def test_a_server_that_is_killed_and_started_again(own_server):
    with spindle.Client(own_server.kv, timeout=PATIENCE) as client:
        client.table("t", create=True).set_many({f"old-{number}": "1" for number in range(100)})
        mirror = client.mirror("t")
        first = mirror.wait_exact(PATIENCE)
        own_server.kill()
        while mirror.exact:
            threading.Event().wait(0.01)
        assert len(mirror) == 100, "the old copy stays readable"
        with pytest.raises(spindle.Timeout, match="not exact"):
            mirror.wait_exact(0)
        own_server.start()
        while mirror.wait_exact(PATIENCE).epoch == first.epoch:
            threading.Event().wait(0.01)
        assert len(mirror) == 0 and mirror.wait_exact(PATIENCE).incarnation == 0
        table = client.table("t", create=True)
        table["new"] = "2"
        caught_up(client, table, mirror)
        assert copy(mirror) == truth(table)


def test_a_history_that_is_too_short_leads_to_another_scan():
    server = Server("--feed", "--feed-history", "16K")
    cutter = Cutter(server.endpoints["feed"])
    try:
        with spindle.Client(server.kv, timeout=PATIENCE) as client:
            table = client.table("t", create=True)
            mirror = client.mirror("t", feed=cutter.endpoint)
            mirror.wait_exact(PATIENCE)
            cutter.stop()
            for turn in range(20):
                table.set_many({f"{number}": f"{turn}" * 100 for number in range(200)})
            cutter.start()
            caught_up(client, table, mirror)
            assert copy(mirror) == truth(table) and mirror.metrics["scans"] >= 2
    finally:
        cutter.close()
        server.end()


def test_a_copy_has_keys_of_any_length(monkeypatch):
    monkeypatch.setattr(spindle._copy, "xxh3_64", _xxh3.pure)
    server = Server("--feed", "--max-key", "4096")
    try:
        with spindle.Client(server.kv, timeout=PATIENCE) as client:
            table = client.table("t", create=True)
            keys = ["k" * size for size in (0, 64, 65, 127, 128, 129, 240, 241, 255, 256, 1024, 1025, 4096)]
            table.set_many({key: str(len(key)) for key in keys[:-1]})
            with client.mirror("t") as mirror:
                caught_up(client, table, mirror)
                table.set(keys[-1], "4096")
                table.incr(keys[3])
                table.delete(keys[4])
                caught_up(client, table, mirror)
                assert copy(mirror) == truth(table) and len(mirror) == len(keys) - 1
                assert mirror.metrics["differences"] == 0 and mirror.metrics["verified"] > 0
            with pytest.raises(spindle.KeyTooLong):
                table.set("k" * 4097, "")
    finally:
        server.end()


def test_a_copy_that_differs_is_found_by_the_digest(client, table):
    table.set_many({str(number): "1" for number in range(50)})
    with client.mirror(table.name) as mirror:
        caught_up(client, table, mirror)
        with mirror._lock:
            wrong = mirror._copy.known[b"7"]
            mirror._copy._touch(b"7", wrong)
            wrong.version += 1
        table["8"] = "2"
        while not mirror.metrics["differences"]:
            threading.Event().wait(0.01)
        caught_up(client, table, mirror)
        assert copy(mirror) == truth(table)


def test_a_server_without_a_feed_says_so():
    server = Server()
    try:
        with spindle.Client(server.kv, timeout=PATIENCE) as client:
            client.create_table("t")
            with pytest.raises(spindle.FeedOff, match="--feed"):
                client.mirror("t")
            with client.mirror("t", feed=server.kv) as mirror:
                with pytest.raises(spindle.Malformed, match="another service"):
                    mirror.wait_exact(PATIENCE)
            with client.mirror("t", feed="ipc:///nobody/is/there") as mirror:
                with pytest.raises(spindle.Timeout, match="no connection"):
                    mirror.wait_exact(0.1)
    finally:
        server.end()


def test_a_mirror_that_nobody_has_ends_its_thread(client, table):
    mirror = client.mirror(table.name)
    mirror.wait_exact(PATIENCE)
    thread = mirror._thread
    del mirror
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_mirror_of_the_parent_is_not_exact_after_a_fork(client, table):
    table["a"] = "1"
    with client.mirror(table.name) as mirror:
        caught_up(client, table, mirror)
        child = os.fork()
        if child == 0:
            os._exit(0 if not mirror.exact and mirror["a"] == b"1" else 1)
        assert os.waitpid(child, 0)[1] == 0 and mirror.exact


def test_mirrors_of_asyncio(own_server):
    async def body():
        async with aio.Client(own_server.kv, timeout=PATIENCE) as client:
            table = await client.table("t", create=True)
            await table.set_many({f"old-{number}": str(number) for number in range(3000)})
            reported = []
            mirror = await client.mirror("t", keys=spindle.TEXT, codec=spindle.TEXT)
            mirror.on_change(reported.append)
            await mirror.wait_exact(PATIENCE)
            assert len(mirror) == 3000 and mirror["old-7"] == "7"
            await table.set("new", "1")
            while "new" not in mirror:
                await asyncio.sleep(0.005)
            assert reported[-1].key == "new" and reported[-1].cause == "set"
            own_server.restart()
            while mirror.exact or "new" in mirror:
                await asyncio.sleep(0.005)
                if mirror.exact and not len(mirror):
                    break
            await mirror.wait_exact(PATIENCE)
            table = await client.table("t", create=True)
            await table.set("again", "2")
            while dict(mirror) != {"again": "2"}:
                await asyncio.sleep(0.005)
            waiting = asyncio.ensure_future(asyncio.wait_for(mirror.wait_exact(PATIENCE), PATIENCE))
            await waiting
            await mirror.close()
            with pytest.raises(spindle.Closed):
                await mirror.wait_exact(1)

    asyncio.run(body())
