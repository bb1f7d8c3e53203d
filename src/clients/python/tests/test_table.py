"""The methods of a table, on both frontends."""

import threading
from datetime import timedelta
from fractions import Fraction

import pytest

import spindle


def test_an_element_is_set_read_and_deleted(table):
    table.set("heron", "grey")
    assert table.get("heron") == table["heron"] == b"grey"
    assert table.get(b"heron") == b"grey"
    assert "heron" in table and "stork" not in table
    assert (table.delete("heron"), table.delete("heron")) == (True, False)
    assert table.get("heron") is None and table.get("heron", b"white") == b"white"
    table["heron"] = b""
    assert table["heron"] == b""
    del table["heron"]
    for absent in (lambda: table["heron"], lambda: table.pop("heron"), lambda: table.entry("heron")):
        with pytest.raises(KeyError) as raised:
            absent()
        assert isinstance(raised.value, spindle.KeyNotFound) and "heron" in str(raised.value)


def test_keys_and_values_have_any_bytes_and_bounds(table):
    key, value = bytes(range(64)), bytes(range(256)) * 4
    table.set(key, value)
    table.set(b"", b"empty")
    assert table[key] == value and table[b""] == b"empty"
    assert table[bytes(key)] == value
    with pytest.raises(spindle.KeyTooLong):
        table.get(b"x" * 65)
    with pytest.raises(spindle.ValueTooLong):
        table.set("x", b"x" * 1025)
    with pytest.raises(TypeError):
        table.set("x", 7)
    with pytest.raises(TypeError):
        table.get(7)
    assert table.get("x") is None


def test_a_ttl_is_seconds_or_a_timedelta_down_to_a_millisecond(table):
    table.set("a", "1", ttl=100)
    assert 99 < table.entry("a").ttl <= 100
    table.set("a", "2")
    assert 99 < table.entry("a").ttl <= 100, "without a TTL the deadline stays"
    table.set("a", "3", ttl=0)
    assert table.entry("a").ttl is None
    assert table.touch("a", timedelta(minutes=1)) and 59 < table.entry("a").ttl <= 60
    assert table.touch("a", 29.5) and 28 < table.entry("a").ttl <= 29.5
    assert table.touch("a", timedelta(seconds=9, microseconds=1)) and 8 < table.entry("a").ttl <= 9.001
    table.set_many({"a": "3"}, ttl=19.25)
    assert 18 < table.entry("a").ttl <= 19.25
    table.cas("a", table.entry("a").version, "3", ttl=5_000_000_000 / 2)
    assert 2_499_999_999 < table.entry("a").ttl <= 2_500_000_000
    assert table.incr("n", ttl=0.0001) == 1, "a millisecond"
    table.set("a", "3", ttl=(1 << 32) + 1)
    assert 1 << 32 < table.entry("a").ttl <= (1 << 32) + 1
    assert not table.touch("b", 1)
    assert table.get_and_touch("a", 500) == b"3" and 499 < table.entry("a").ttl <= 500
    assert table.get_and_touch("b", 1) is None and table.get_and_touch("b", 1, b"x") == b"x"
    for wrong in (-1, -0.5, 1 << 33, 4398046511.104, float("nan"), float("inf"), timedelta(days=-1), timedelta.max):
        with pytest.raises(ValueError):
            table.set("a", "4", ttl=wrong)


@pytest.mark.parametrize("ttl", [1, 1.5, timedelta(milliseconds=250)])
def test_an_element_with_a_ttl_goes(table, ttl):
    table.set("a", "1", ttl=ttl)
    deadline = threading.Event()
    while "a" in table:
        deadline.wait(0.02)
    assert table.add("a", "2")


def test_each_change_has_its_own_version(table):
    assert table.add("a", "1") and not table.add("a", "2")
    first = table.entry("a")
    assert (first.value, first.ttl) == (b"1", None)
    second = table.cas("a", first.version, "2", ttl=9)
    assert second > first.version
    with pytest.raises(spindle.VersionMismatch) as raised:
        table.cas("a", first.version, "3")
    assert raised.value.current == second
    with pytest.raises(spindle.VersionMismatch) as raised:
        table.cas("absent", 1, "3")
    assert raised.value.current == 0
    assert table.pop("a") == b"2"


def test_a_new_table_takes_versions_and_gives_new_ones_above_them(client, table, name):
    table.set("a", "1", ttl=100)
    table.set("b", "2")
    copy = client.table(name + "-copy", create=True)
    for key in ("a", "b"):
        entry = table.entry(key)
        assert copy.restore(key, entry.value, entry.version, entry.ttl)
        assert not copy.restore(key, "other", entry.version)
        restored = copy.entry(key)
        assert (restored.value, restored.version) == (entry.value, entry.version)
    assert 99 < copy.entry("a").ttl <= 100 and copy.entry("b").ttl is None
    version = copy.entry("a").version
    assert copy.cas("a", version, "3") > version
    for version in (0, 1 << 58):
        with pytest.raises(spindle.OutOfRange):
            copy.restore("c", "1", version)
    copy.drop()


def test_numbers_are_counted(table):
    assert [table.incr("n"), table.incr("n", 41), table.incr("n", -50)] == [1, 42, -8]
    assert table["n"] == b"-8"
    assert table.incr("m", ttl=50) == 1 and 49 < table.entry("m").ttl <= 50
    table["text"] = "ten"
    with pytest.raises(spindle.NotANumber):
        table.incr("text")
    table["large"] = str((1 << 63) - 1)
    with pytest.raises(spindle.OutOfRange):
        table.incr("large")
    assert [table.rate_limit("ada", 3, 60) for _ in range(5)] == [True] * 3 + [False] * 2


def test_many_at_once_go_in_several_requests(table):
    elements = {f"key-{number}": str(number) for number in range(10_000)}
    table.set_many(elements, ttl=1000)
    assert len(table) == 10_000
    found = table.get_many([*elements, "absent"])
    assert found == {key: value.encode() for key, value in elements.items()}
    assert 0 < table.entry("key-9999").ttl <= 1000
    assert table.delete_many(["absent", *list(elements)[:5000]]) == 5000
    assert len(table) == 5000
    assert table.get_many([]) == {} and table.delete_many([]) == 0
    table.set_many({})
    table.set_many({number.to_bytes(4, "big"): bytes(1024) for number in range(3000)})
    assert len(table) == 8000


def test_a_scan_shows_all_keys_with_a_prefix(client, name):
    table = client.table(name, create=True, keys=spindle.TEXT, codec=spindle.TEXT)
    birds = {f"bird-{number}": "x" * 100 for number in range(3000)}
    fish = {f"fish-{number}": str(number) for number in range(100)}
    table.set_many({**birds, **fish})
    assert set(table.scan("bird-")) == set(birds)
    assert dict(table.items("fish-")) == fish
    assert set(table) == {*birds, *fish}
    assert list(table.scan("none")) == []


def test_codecs_decode_what_they_encoded(client, name):
    text = client.table(name, create=True, codec=spindle.TEXT)
    text["a"] = "grün"
    assert text["a"] == "grün"
    values = {"list": [1, 2.5, None], "text": "grün"}
    json = client.table(name, codec=spindle.JSON)
    json["b"] = values
    assert json["b"] == values and json.get_many(["b"]) == {"b": values}
    pickled = client.table(name, codec=spindle.PICKLE)
    pickled["c"] = {1, 2}
    assert pickled.entry("c").value == {1, 2} and pickled.pop("c") == {1, 2}
    number = client.table(name, codec=spindle.Codec(lambda value: b"%d" % value, int))
    number["d"] = 7
    assert number["d"] == 7


def test_tables_come_and_go(client, name):
    with pytest.raises(spindle.TableNotFound) as raised:
        client.table(name).get("a")
    assert name in str(raised.value) and isinstance(raised.value, LookupError)
    table = client.table(name, create=True)
    assert client.table(name, create=True).name == table.name
    with pytest.raises(spindle.TableExists):
        client.create_table(name)
    table["a"] = "1"
    assert client.tables()[name] == len(table) == 1 and table
    table.drop()
    with pytest.raises(spindle.TableNotFound):
        len(table)
    for evicts in (None, False, True):
        client.create_table(name, evicts, durability=None if evicts is None else "none")
        with pytest.raises(spindle.TableExists):
            client.create_table(name, evicts)
        client.delete_table(name)
    client.create_table(name)
    client.alter_table(name, "none")
    with pytest.raises(ValueError):
        client.alter_table(name, "sometimes")
    client.delete_table(name)
    with pytest.raises(spindle.TableNotFound):
        client.alter_table(name, "soon")
    for wrong in ({"durability": "sometimes"}, {"evicts": True, "durability": "soon"}):
        with pytest.raises(ValueError):
            client.create_table(name, **wrong)
    with pytest.raises(spindle.BadTableName):
        client.create_table("")
    client.ping()
    assert "commands" in str(client.stats()) or client.stats()


def test_a_scan_ends_when_its_table_is_made_anew(client, name):
    table = client.table(name, create=True)
    table.set_many({str(number): "" for number in range(5000)})
    keys = table.scan()
    next(keys)
    table.drop()
    client.create_table(name)
    with pytest.raises(spindle.BadCursor):
        list(keys)


def test_a_lock_has_one_holder_at_a_time(client, name):
    table = client.table(name, create=True)
    inside, versions = [], []

    def work():
        for _ in range(5):
            with table.lock("door", ttl=30) as lock:
                inside.append(1)
                assert len(inside) == 1
                versions.append(lock.version)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(versions) == 30 and versions == sorted(set(versions)), "each holder has a larger token"
    assert "door" not in table


def test_a_lock_is_extended_while_it_is_held_and_its_loss_is_reported(table):
    with table.lock("door", ttl=1) as lock:
        first = table.entry("door").version
        while table.entry("door").version == first:
            threading.Event().wait(0.02)
        assert lock.version == first and not lock.is_lost
        with pytest.raises(spindle.Timeout), table.lock("door", timeout=0):
            raise AssertionError("two holders")
    with pytest.raises(spindle.LockLost):
        with table.lock("door", ttl=60):
            table["door"] = "another"
    table.delete("door")
    with pytest.raises(KeyError, match="of the body"):
        with table.lock("door", ttl=60):
            table.delete("door")
            raise KeyError("of the body")
    with pytest.raises(ValueError):
        table.lock("door", ttl=0)


def test_a_cached_value_is_computed_once_however_many_ask(client, name):
    cache = client.table(name, create=True, codec=spindle.JSON)
    computed, entered = [], threading.Event()

    @cache.cached(ttl=60)
    def double(number):
        computed.append(number)
        entered.wait(0.05)
        return number * 2

    results = []
    threads = [threading.Thread(target=lambda: results.append(double(21))) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert (results, computed) == ([42] * 8, [21])
    assert double(4) == 8 and computed == [21, 4]

    @cache.cached(ttl=60, key=lambda number: f"fails-{number}")
    def fails(number):
        computed.append(number)
        raise OSError("no disk")

    for _ in range(2):
        with pytest.raises(OSError):
            fails(5)
    assert computed[2:] == [5, 5] and "fails-5" not in cache


def test_numbers_and_times_that_are_none_are_refused(client, table):
    for call in (
        lambda: table.set("a", "1", ttl="5"),
        lambda: table.set("a", "1", ttl=True),
        lambda: table.touch("a", None),
        lambda: table.incr("a", 1.5),
        lambda: table.decr("a", "1"),
        lambda: table.cas("a", "1", "2"),
        lambda: table.lock("a", ttl="5"),
        lambda: table.lock("a", timeout="5"),
        lambda: spindle.Client(client.endpoint, timeout="2"),
        lambda: client.tasks.lend(lease="5"),
        lambda: client.tasks.lend(wait="5"),
        lambda: client.jobs("mail").lend(wait="5"),
    ):
        with pytest.raises(TypeError, match="is a (whole )?number"):
            call()
    for call in (
        lambda: table.set("a", "1", ttl=float("inf")),
        lambda: table.set("a", "1", ttl=float("nan")),
        lambda: table.set("a", "1", ttl=-1),
        lambda: table.lock("a", timeout=-1),
        lambda: client.tasks.lend(lease=float("nan")),
        lambda: spindle.Client(client.endpoint, timeout=float("nan")),
    ):
        with pytest.raises(ValueError, match="seconds"):
            call()
    for call in (lambda: table.incr("a", 1 << 63), lambda: table.cas("a", -1, "2"), lambda: table.decr("a", -(1 << 63))):
        with pytest.raises(OverflowError, match="is .* to "):
            call()
    assert table.get("a") is None


def test_a_ttl_of_a_part_of_a_second_is_milliseconds_on_the_wire(client, table, monkeypatch):
    sent, call = [], client._driver.call
    monkeypatch.setattr(client._driver, "call", lambda request, timeout: sent.append(request) or call(request, timeout))
    table.set("a", "1", ttl=0.2)
    table.touch("a", 0.2)
    table.incr("n", 1, Fraction(1, 5))
    assert [request[-1] for request in sent] == [b"\x01" + (200).to_bytes(8, "big")] * 3
    assert 0 < table.entry("a").ttl <= 0.2


def test_the_words_of_a_dictionary(client, name):
    table = client.table(name, create=True, codec=spindle.TEXT, keys=spindle.TEXT)
    table.set_many((f"key-{number}", str(number)) for number in range(2000))
    assert len(table) == 2000 and set(table.keys("key-19")) == {key for key in table if key.startswith("key-19")}
    table.delete_many(list(table))
    table.set_many([("a", "1")])
    assert dict(table) == {"a": "1"}
    assert table.pop("none", None) is None and table.pop("none", 7) == 7 and table.pop("a", "2") == "1"
    with pytest.raises(KeyError):
        table.pop("a")
    assert [table.incr("n", 5), table.decr("n"), table.decr("n", 10, ttl=60)] == [5, 4, -6]
    assert repr(table) == f"<table {name.encode()!r} of {client.endpoint}>"
    assert client.endpoint in repr(client) and "tasks" in repr(client.tasks) and "'mail'" in repr(client.jobs("mail"))
    assert "not held" in repr(table.lock("x")) and "1 slots" in repr(client.tasks.worker(print))


def test_a_rate_limit_reports_what_remains(table):
    limits = [table.rate_limit("ada", 3, 60) for _ in range(5)]
    assert [limit.remaining for limit in limits] == [2, 1, 0, 0, 0]
    assert [limit.retry_after for limit in limits[:3]] == [0, 0, 0]
    assert all(59 < limit.retry_after <= 60 for limit in limits[3:])
    assert [bool(limit) for limit in limits] == [True] * 3 + [False] * 2 == limits
    table.set("eve", "7")
    assert table.rate_limit("eve", 3, 60).retry_after == float("inf")
