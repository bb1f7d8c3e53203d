"""Users with passwords and with keys: who is admitted, what each may do, and the errors that clients receive."""

import asyncio
import inspect
import pathlib
import queue
import ssl
import threading

import pytest
import zmq
from conftest import COMMANDS, PATIENCE, again
from server import Guarded

import spindle
from spindle import _kv, aio

# Of the tables.
FRONTENDS = ["native", "proxy"]
MECHANISMS = ["plain", "curve"]


@pytest.fixture(params=FRONTENDS)
def guarded(request):
    """A server that wants users, with all services."""
    server = Guarded("--frontend", request.param, "--feed", "--tasks", "--jobs")
    yield server
    server.end()


@pytest.fixture(params=MECHANISMS)
def mechanism(request):
    return request.param


def connect(server, name, mechanism="plain", kind=spindle.Client, **options):
    """A client of this user."""
    ends = {service: server.endpoints[service] for service in ("feed", "tasks", "jobs")}
    return kind(server.kv, **{"timeout": PATIENCE, **ends, **server.login(name, mechanism), **options})


def test_users_are_let_in_with_their_passwords_and_keys(guarded, mechanism):
    with connect(guarded, "ada", mechanism) as client:
        table = client.table("eu-birds", create=True)
        table.set_many({f"key-{number}": bytes(1000) for number in range(5000)})
        assert len(table) == 5000 == len(table.get_many(f"key-{number}" for number in range(5000)))
        assert len(set(table.scan())) == 5000

    async def tasks():
        async with connect(guarded, "eve", mechanism, aio.Client) as client:
            table = await client.table("eu-birds")
            assert await asyncio.gather(*(table.get(f"key-{number}") for number in range(50))) == [bytes(1000)] * 50

    asyncio.run(tasks())


def test_a_wrong_password_or_key_is_denied(guarded):
    public, secret = zmq.curve_keypair()
    wrong = [
        {},
        {"user": "ada"},
        {"user": "ada", "password": "mistaken"},
        {"user": "nobody", "password": "ada"},
        {"curve": spindle.Curve(guarded.server_key)},
        {"curve": spindle.Curve(guarded.server_key, public, secret)},
    ]
    for options in wrong:
        with spindle.Client(guarded.kv, timeout=PATIENCE, **options) as client:
            with pytest.raises(spindle.Denied) as raised:
                client.ping()
            assert guarded.kv in str(raised.value) and "mistaken" not in str(raised.value)

    async def ping(options):
        async with aio.Client(guarded.kv, timeout=PATIENCE, **options) as client:
            with pytest.raises(spindle.Denied):
                await client.ping()

    # Each wrong password makes the next one wait longer.
    for options in wrong[1::3]:
        asyncio.run(ping(options))
    with connect(guarded, "ada") as client:
        client.ping()


def test_the_key_of_another_server_is_reported(guarded):
    """The server cannot read the handshake, and closes the connection."""
    wrong = guarded.keys("ada")._replace(server_key=guarded.keys("eve").public_key)
    with spindle.Client(guarded.kv, timeout=0.5, curve=wrong) as client:
        while True:
            with pytest.raises(spindle.Timeout) as raised:
                client.ping()
            if "server_key" in str(raised.value):
                return


def test_what_can_be_no_user_is_refused_before_it_is_sent():
    for wrong in ({"password": "alone"}, {"user": "a" * 256}, {"user": "ada", "password": "x" * 256}):
        for kind in (spindle.Client, aio.Client):
            with pytest.raises(ValueError):
                kind("tcp://127.0.0.1:1", **wrong)
    for wrong in ({"user": "ada eve", "password": ""}, {"user": "ada", "password": "x\nADD mail 0 "}, {"user": ""}):
        with pytest.raises(ValueError):
            spindle.Client("tcp://127.0.0.1:1", **wrong).jobs("mail")


# The arguments of the methods that make commands, by their names.
ARGUMENTS = {
    "key": "a",
    "value": "2",
    "ttl": 5,
    "version": 7,
    "delta": 1,
    "default": None,
    "keys": ["a"],
    "elements": {"a": "2"},
    "cursor": b"",
    "prefix": "",
    "name": "a",
    "evicts": None,
    "durability": "soon",
}


# The rows of the page by their codes, among which some may be missing.
ROWS = {row.code: row for row in COMMANDS}


def each_command(owner, names):
    """The command of each of these functions, and its row in the page of the protocol."""
    for name in names:
        function = getattr(owner, name)
        made = function(*(ARGUMENTS[parameter] for parameter in inspect.signature(function).parameters))
        for command in made if isinstance(made, list) else [made]:
            yield name, ROWS[command[0][0][0]], command


METHODS = [name for name in vars(_kv.TableCommands) if not name.startswith("_")]


def test_the_client_sends_every_command_of_the_page():
    sent = {row.name for _, row, _ in each_command(_kv.TableCommands("a", _kv.BYTES, _kv.BYTES), METHODS)}
    sent |= {row.name for _, row, _ in each_command(_kv, ["ping", "create_table", "alter_table", "delete_table", "tables", "stats"])}
    # Mirrors send these.
    assert sent | {"FEED_STATE", "CHANGES"} == {row.name for row in COMMANDS}
    for row in COMMANDS:
        assert getattr(_kv, row.name) == bytes([row.code])


def test_every_command_has_a_method_with_an_example_or_a_test():
    tests = pathlib.Path(__file__).with_name("test_table.py").read_text()
    sources = "".join(path.read_text() for path in pathlib.Path(_kv.__file__).parent.rglob("*.py"))
    for name in METHODS:
        assert f"commands.{name}(" in sources, name
        method = vars(aio.Table).get(name)
        assert method is None or ">>>" in method.__doc__ or f"table.{name}(" in tests, name


# What has methods of its own, though no command of its own.
CHANGES = {
    "set item": lambda table: table.__setitem__("a", "2"),
    "delete item": lambda table: table.__delitem__("a"),
    "rate_limit": lambda table: table.rate_limit("b", 5, 60),
    "lock": lambda table: table.lock("b").__enter__(),
    "drop": lambda table: table.drop(),
}
READS = {
    "item": lambda table: table["a"],
    "in": lambda table: "a" in table,
    "scan": lambda table: list(table.scan()),
    "items": lambda table: list(table.items()),
}


def test_a_user_may_do_what_its_prefixes_say(guarded):
    with connect(guarded, "root") as root, connect(guarded, "ada") as ada, connect(guarded, "eve") as eve:
        for name in ("eu-birds", "us-birds"):
            root.table(name, create=True).set("a", "1")
        for client, name, granted in ((eve, "eu-birds", "read"), (eve, "us-birds", ""), (ada, "us-birds", "")):
            for method, row, command in each_command(client.table(name)._commands, METHODS):
                if row.access == granted == "read":
                    assert client._run(command), method
                elif row.access:
                    with pytest.raises(spindle.Denied, match="DENIED"):
                        client._run(command)
                assert dict(root.table(name).items()) == {b"a": b"1"}, method
        for change, call in CHANGES.items():
            with pytest.raises(spindle.Denied, match="DENIED"):
                call(eve.table("eu-birds"))
            with pytest.raises(spindle.Denied):
                call(ada.table("us-birds"))
            assert dict(root.table("eu-birds").items()) == {b"a": b"1"}, change
        birds = eve.table("eu-birds")
        assert birds.cached(60)(lambda: "2")() == "2" and birds.cache_failures == 1 and len(birds) == 1
        for call in READS.values():
            assert call(eve.table("eu-birds"))
            with pytest.raises(spindle.Denied):
                call(eve.table("us-birds"))
        for client in (ada, eve):
            assert client.tables() == {"eu-birds": 1} and len(client.table("eu-birds")) == 1
            with pytest.raises(spindle.TableNotFound):
                len(client.table("us-birds"))
            with pytest.raises(spindle.Denied):
                client.stats()
        with pytest.raises(spindle.Denied):
            eve.create_table("eu-nests")
        # A table that is there may be used with the same words by users who could not make it.
        assert eve.table("eu-birds", create=True)["a"] == b"1"
        with pytest.raises(spindle.Denied):
            eve.table("eu-nests", create=True)
        ada.create_table("eu-nests")
        ada.table("eu-nests").drop()


def test_the_methods_of_asyncio_are_denied_too(guarded):
    async def body():
        async with connect(guarded, "ada", kind=aio.Client) as ada, connect(guarded, "eve", kind=aio.Client) as eve:
            birds = await ada.table("eu-birds", create=True)
            await birds.set("a", "1")
            birds = await eve.table("eu-birds", create=True)
            assert await birds.get("a") == b"1"
            for denied in (birds.set("a", "2"), birds.drop(), eve.stats(), eve.table("eu-nests", create=True)):
                with pytest.raises(spindle.Denied):
                    await denied
            with pytest.raises(spindle.Denied, match="feed="):
                eve._feed = None
                await eve.mirror("eu-birds")

    asyncio.run(body())


def test_mirrors_log_in_and_follow_what_their_user_may_read(guarded, mechanism):
    with connect(guarded, "ada", mechanism) as ada, connect(guarded, "eve", mechanism) as eve:
        table = ada.table("eu-birds", create=True)
        table.set("a", "1")
        mirror = eve.mirror("eu-birds")
        mirror.wait_exact(PATIENCE)
        changes = queue.Queue()
        mirror.on_change(changes.put)
        table.set("b", "2")
        assert changes.get(timeout=PATIENCE).key == b"b" and dict(mirror) == {b"a": b"1", b"b": b"2"}
        hidden = eve.mirror("us-birds")
        with pytest.raises(spindle.Denied):
            hidden.wait_exact(PATIENCE)
    unknown = {"user": "ada", "password": "wrong"} if mechanism == "plain" else {"curve": guarded.keys("server")}
    with spindle.Client(guarded.kv, feed=guarded.endpoints["feed"], **unknown) as client:
        with pytest.raises(spindle.Denied):
            client.mirror("eu-birds").wait_exact(PATIENCE)


def test_only_an_admin_receives_the_endpoint_of_the_feed(guarded):
    with connect(guarded, "root", feed=None) as root, connect(guarded, "eve", feed=None) as eve:
        root.create_table("eu-birds")
        root.mirror("eu-birds").wait_exact(PATIENCE)
        with pytest.raises(spindle.Denied, match="feed="):
            eve.mirror("eu-birds")
        eve.mirror("eu-birds", feed=guarded.endpoints["feed"]).wait_exact(PATIENCE)


def until_denied(call):
    """Calls until the server has noticed that the user is gone."""
    while True:
        try:
            call()
            threading.Event().wait(0.01)
        except spindle.Denied:
            return
        except (spindle.Disconnected, spindle.Timeout):
            # Its connection was cut.
            pass


def test_a_user_who_is_removed_is_cut_off(guarded, mechanism):
    with connect(guarded, "ada", mechanism) as ada:
        ada.table("eu-birds", create=True).set("a", "1")
        ada.tasks.add("a", "1")
        guarded.remove("ada")
        until_denied(lambda: ada.table("eu-birds").get("a"))
        until_denied(ada.tasks.count)


def test_the_mirror_of_a_user_who_is_removed_stays_as_it_was(guarded, mechanism):
    with connect(guarded, "root") as root, connect(guarded, "eve", mechanism) as eve:
        root.table("eu-birds", create=True).set("a", "1")
        mirror = eve.mirror("eu-birds")
        mirror.wait_exact(PATIENCE)
        guarded.remove("eve")
        while mirror.exact:
            threading.Event().wait(0.01)
        with pytest.raises(spindle.Denied):
            mirror.wait_exact(PATIENCE)
        root.table("eu-birds").set("a", "2")
        assert mirror["a"] == b"1" and not mirror.exact


def test_a_user_who_is_back_is_let_in_again(guarded, mechanism):
    with connect(guarded, "ada", mechanism) as ada:
        table = ada.table("eu-birds", create=True)
        table.set("a", "1")
        guarded.remove("ada")
        until_denied(ada.ping)
        guarded.add("ada")
        assert again(lambda: table.get("a"), spindle.Denied) == b"1"


def test_many_mirrors_over_encrypted_connections_are_exact(guarded):
    """The reply to a request may be there as soon as it was sent. Then the next request follows at once."""
    with connect(guarded, "ada", "curve") as client:
        for number in range(20):
            client.table(f"eu-{number}", create=True).set("a", "1")
        mirrors = [client.mirror(f"eu-{number}") for number in range(20)]
        for mirror in mirrors:
            mirror.wait_exact(PATIENCE)
            assert dict(mirror) == {b"a": b"1"}


def test_a_client_logs_in_again_when_the_server_was_started_again(guarded, mechanism):
    lost = (spindle.Disconnected, spindle.Timeout)
    with connect(guarded, "ada", mechanism) as client:
        client.table("eu-birds", create=True).set("a", "1")
        client.tasks.add("a", "1")
        mirror = client.mirror("eu-birds")
        mirror.wait_exact(PATIENCE)
        for _ in range(2):
            guarded.restart()
            assert again(client.tables, *lost) == {}, "it is another start, without tables"
            assert again(client.tasks.count, *lost) == 1, "tasks are durable"
            client.table("eu-birds", create=True).set("a", "2")
            while mirror.get("a") != b"2":
                mirror.wait_exact(PATIENCE)


def test_a_request_on_an_encrypted_connection_fails_at_once_when_it_is_lost(guarded):
    with connect(guarded, "ada", "curve") as client:
        client.ping()
        guarded.pause()
        errors = []

        def ask():
            try:
                client.ping()
            except spindle.Error as error:
                errors.append(type(error))

        asking = threading.Thread(target=ask)
        asking.start()
        while not client._driver._pending:
            threading.Event().wait(0.01)
        client.timeout = 10 * PATIENCE
        guarded.kill()
        asking.join()
        assert errors == [spindle.Disconnected]


def test_tasks_are_for_users_who_may(guarded, mechanism):
    with connect(guarded, "ada", mechanism) as ada, connect(guarded, "eve", mechanism) as eve:
        done = queue.Queue()

        @ada.tasks.worker(slots=2)
        def work(task):
            task.heartbeat()
            done.put(task.key)

        with work:
            ada.tasks.add("a", "1")
            assert done.get(timeout=PATIENCE) == b"a"
        assert eve.tasks.count() == 0 and eve.tasks.get("a") is None and ada.tasks.add("a", "1")
        assert eve.tasks.count() == 1 and eve.tasks.get("a") == b"1" and eve.tasks.stats()["add"] == 2
        for denied in (lambda: eve.tasks.add("b", "1"), eve.tasks.lend, lambda: eve.tasks.remove("a")):
            with pytest.raises(spindle.Denied):
                denied()
        assert ada.tasks.get("a") == b"1" and ada.tasks.get("b") is None
    with connect(guarded, "ada", password="wrong") as client:
        with pytest.raises(spindle.Denied):
            client.tasks.count()


@pytest.fixture(params=["plain", "TLS"])
def post(request):
    """A server of jobs that wants users, and how its clients encrypt."""
    server = Guarded("--frontend", "native", "--feed", "--tasks", "--jobs", *(Guarded.TLS * (request.param == "TLS")))
    yield server, {"tls": Guarded.PEM} if request.param == "TLS" else {}
    server.end()


def test_jobs_are_for_users_who_may(post):
    server, tls = post
    with connect(server, "ada", **tls) as ada, connect(server, "eve", **tls) as eve:
        done = queue.Queue()
        mail = ada.jobs("mail", codec=spindle.JSON)

        @mail.worker(slots=2)
        def send(job):
            done.put(job.data)

        with send:
            mail.add("x" * 900_000)
            assert done.get(timeout=PATIENCE) == "x" * 900_000
        first = mail.add({"to": "ada"})
        assert eve.jobs("mail").has(first)
        letters, post = eve.jobs("mail"), ada.jobs("post")
        for denied in (lambda: letters.add("x"), letters.lend, lambda: letters.ack(first), lambda: post.add("x")):
            with pytest.raises(spindle.Denied, match=server.endpoints["jobs"]):
                denied()
        job = mail.lend()
        assert (job.id, job.data) == (first, {"to": "ada"})
        job.done()
    for wrong in ({"user": None, "password": None}, {"password": "wrong"}, {"user": "nobody"}):
        with connect(server, "ada", **tls, **wrong) as client:
            with pytest.raises(spindle.Refused, match="user") as raised:
                client.jobs("mail").add("x")
            assert "wrong" not in str(raised.value)


def test_jobs_of_asyncio_are_for_users_who_may(post):
    server, tls = post

    async def body():
        async with connect(server, "ada", kind=aio.Client, **tls) as ada:
            mail, done = ada.jobs("mail"), asyncio.Queue()

            @mail.worker(slots=2)
            async def send(job):
                await done.put(job.data)

            async with send:
                await mail.add("x" * 900_000)
                assert await asyncio.wait_for(done.get(), PATIENCE) == b"x" * 900_000
            with pytest.raises(spindle.Denied):
                await ada.jobs("post").add("x")
            assert await mail.lend() is None

    asyncio.run(body())


def test_a_server_of_jobs_that_cannot_be_trusted_gets_nothing(post):
    server, tls = post
    if not tls:
        with connect(server, "ada", tls=Guarded.PEM) as client:
            with pytest.raises(spindle.Disconnected, match="TLS"):
                client.jobs("mail").add("x")
        with pytest.raises(FileNotFoundError):
            connect(server, "ada", tls="nowhere.pem")
        return

    async def add(**options):
        async with connect(server, "ada", kind=aio.Client, **options) as client:
            await client.jobs("mail").add("x")

    trusting = ssl.create_default_context(cafile=Guarded.PEM)
    for error, match, options in (
        (spindle.Malformed, "tls=", {}),
        (spindle.Disconnected, "trusted", {"tls": ssl.create_default_context()}),
    ):
        with connect(server, "ada", **options) as client:
            with pytest.raises(error, match=match):
                client.jobs("mail").add("x")
        with pytest.raises(error, match=match):
            asyncio.run(add(**options))
    with connect(server, "ada", tls=trusting) as client:
        assert client.jobs("mail").lend() is None
