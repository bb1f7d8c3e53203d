"""Users as pyzmq sees them, with PLAIN and CURVE: who is admitted, what each may do, and when it is cut off.

    users.py CHAPTER KV LOCKSTEP TASKS FILE SPINDLE KEYS PUBLISH FEED LOCKSTEP_PUBLISH

KEYS is a folder with the secret keys ada, eve and server.
"""

import json
import pathlib
import re
import subprocess
import sys
import time

import zmq
from specified import COMMANDS

OK, ERROR, DENIED = b"\x01", b"\x00", b"DENIED"
CREATE, DROP, UPDATE, GET, PING, LIST, STATS, SCAN = 0, 1, 2, 4, 5, 12, 13, 14
LIMIT = 60_000
CONTEXT = zmq.Context()
# All clients live as long as the script.
ALL = []
FAILED = (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)


def public(folder, name):
    secret = pathlib.Path(folder, name).read_text().strip().encode()
    return zmq.curve_public(secret), secret


class Client:
    """A DEALER as one user: by a password, or by a key if `keys` is the folder. With topics, a SUB."""

    def __init__(self, endpoint, user=None, password=None, keys=None, reconnects=True, topics=None, routing_id=None):
        self.socket = CONTEXT.socket(zmq.DEALER if topics is None else zmq.SUB)
        if routing_id is not None:
            self.socket.routing_id = routing_id
        for topic in topics or ():
            self.socket.subscribe(topic)
        self.socket.rcvhwm = 0
        self.socket.linger = 0
        self.socket.rcvtimeo = LIMIT
        self.socket.reconnect_ivl = 20 if reconnects else -1
        if password is not None:
            self.socket.plain_username = user.encode()
            self.socket.plain_password = password.encode()
        elif keys is not None:
            self.socket.curve_publickey, self.socket.curve_secretkey = public(keys, user)
            self.socket.curve_serverkey = public(keys, "server")[0]
        # A name of its own: pyzmq's is made of a descriptor, which a new socket may get before the old monitor is gone.
        self.monitor = self.socket.get_monitor_socket(addr=f"inproc://monitor-{len(ALL)}")
        self.monitor.rcvtimeo = LIMIT
        ALL.append(self)
        self.socket.connect(endpoint)

    def ask(self, code, *frames):
        self.socket.send_multipart([bytes([code]), *frames])
        return self.socket.recv_multipart()

    def event(self, *wanted):
        """Waits for one of these events of the connection."""
        import zmq.utils.monitor as monitor

        while True:
            event = monitor.recv_monitor_message(self.monitor)["event"]
            if event in wanted:
                return event


def check(found, expected):
    if found != expected:
        raise AssertionError(f"{found!r}, and not {expected!r}")


def refusals(root):
    """The refusals until now, by their reasons."""
    return json.loads(root.ask(STATS)[1])["users"]["refused"]


def until_refused(root, **least):
    """Waits until there were so many refusals for each of these reasons."""
    end = time.monotonic() + LIMIT / 1_000
    while any(refusals(root)[why] < count for why, count in least.items()):
        if time.monotonic() > end:
            raise AssertionError(f"{refusals(root)!r}, and not {least!r}")


def chapter_tables(kv, lockstep, tasks, file, spindle, keys, *publishers):
    for login in ({"password": "heron"}, {"keys": keys}):
        ada = Client(kv, "ada", **login)
        check(ada.ask(PING), [OK])
        check(ada.ask(CREATE, b"eu-own"), [OK])
        check(ada.ask(UPDATE, b"eu-own", b"k", b"v" * 1000), [OK])
        check(ada.ask(GET, b"eu-own", b"k"), [OK, b"v" * 1000])
        check(ada.ask(CREATE, b"us"), [ERROR, DENIED])
        check(ada.ask(CREATE, b"eu-other"), [ERROR, DENIED])
        check(ada.ask(STATS), [ERROR, DENIED])
        root = Client(kv, "root", password="ibis")
        for table in (b"us", b"eu-read"):
            check(root.ask(CREATE, table), [OK])
            check(root.ask(UPDATE, table, b"k", b"v"), [OK])
        check(ada.ask(GET, b"us", b"k"), [ERROR, DENIED])
        check(ada.ask(SCAN, b"us", b"", (1).to_bytes(8, "big"), b"\x00"), [ERROR, DENIED])
        check(ada.ask(GET, b"eu-read", b"k"), [OK, b"v"])
        check(ada.ask(GET, b"eu-read\0", b"k"), [OK, b"v"])
        check(ada.ask(UPDATE, b"eu-read", b"k", b"w"), [ERROR, DENIED])
        check(sorted(ada.ask(LIST)[1::2]), [b"eu-own", b"eu-read"])
        check(len(root.ask(LIST)), 7)
        check(root.ask(STATS)[0], OK)
        for table in (b"us", b"eu-read", b"eu-own"):
            check(root.ask(DROP, table), [OK])


def chapter_verbs(kv, lockstep, tasks, file, spindle, keys, *publishers):
    """Each verb is sent by users of every permission. Those that may not send it change nothing."""
    number, table = (1).to_bytes(8, "big"), b"verbs"
    frames = {"table": table, "key": b"k", "value": b"v", "ttl": bytes(8), "ttl-or-empty": b"", "cursor": b""}
    frames |= {"fields": b"\0", "durability": b"\0"}
    least_of = {"": "", "read": "reader", "write": "writer", "admin": "owner"}
    rows = [
        (
            "root" if command.access == "admin" and "table" not in command.once else least_of[command.access],
            command.code,
            command.arguments(lambda name: frames.get(name, number)),
        )
        for command in COMMANDS
    ]
    # The table is there while the others are sent.
    rows.append(rows.pop(DROP))
    passwords = {"owner": "owner", "writer": "writer", "reader": "reader", "ada": "heron", "root": "ibis"}
    order = ["ada", "reader", "writer", "owner", "root"]
    clients = {name: Client(kv, name, password=passwords[name]) for name in order}
    refusals_before, refused = refusals(clients["root"])["permission"], 0
    for least, code, arguments in rows:
        for name in order:
            answer = clients[name].ask(code, *arguments)
            denied = bool(least) and order.index(name) < order.index(least)
            check((code, name, answer[:2] == [ERROR, DENIED]), (code, name, denied))
            refused += denied
        # In frames that do not fit into one, and with an envelope.
        client = clients["ada"]
        client.socket.send_multipart([b"hop" * 20, b"", bytes([code]), *arguments])
        answer = client.socket.recv_multipart()
        check((code, answer[:2]), (code, [b"hop" * 20, b""]))
        check((code, answer[2:4] == [ERROR, DENIED]), (code, bool(least)))
        refused += bool(least)
    # No user may do what is no request.
    check([client.ask(255)[:2] for client in clients.values()], [[ERROR, b"UNKNOWN COMMAND"]] * 5)
    check(clients["root"].ask(LIST), [OK])
    check(refusals(clients["root"])["permission"], refusals_before + refused)


def chapter_ids(kv, lockstep, tasks, file, spindle, keys, *publishers):
    """Connections of several users come with one routing id, one after the other, and pipeline requests."""
    root = Client(kv, "root", password="ibis")
    check(root.ask(CREATE, b"eu-own"), [OK])
    for turn in range(5):
        for user, login in (("ada", {"password": "heron"}), ("root", {"password": "ibis"}), ("eve", {"keys": keys})):
            client = Client(kv, user, **login, routing_id=b"the same")
            for _ in range(50):
                client.socket.send_multipart([bytes([STATS])])
                client.socket.send_multipart([bytes([UPDATE]), b"eu-own", b"k", b"v"])
            for _ in range(50):
                check(client.socket.recv_multipart()[0], OK if user == "root" else ERROR)
                check(client.socket.recv_multipart(), [OK])
            client.socket.close()
    check(root.ask(DROP, b"eu-own"), [OK])


def chapter_flood(kv, lockstep, tasks, file, spindle, keys, *publishers):
    """Wrong passwords and unknown peers come without end. Users are served, and also admitted."""
    root = Client(kv, "root", password="ibis")
    check(root.ask(CREATE, b"eu-own"), [OK])
    before = refusals(root)
    flood = [Client(kv, "ada", password=f"wrong {number}", reconnects=False) for number in range(100)]
    flood += [Client(kv, reconnects=False) for _ in range(50)]
    flood += [Client(kv, "unknown", keys=keys, reconnects=False) for _ in range(50)]
    for number in range(20):
        check(root.ask(UPDATE, b"eu-own", b"k", b"%d" % number), [OK])
        for login in ({"user": "root", "password": "ibis"}, {"user": "eve", "keys": keys}):
            client = Client(kv, **login)
            check(client.ask(GET, b"eu-own", b"k"), [OK, b"%d" % number])
            client.socket.close()
    for client in flood[100:]:
        check(client.event(*FAILED, zmq.EVENT_HANDSHAKE_SUCCEEDED) in FAILED, True)
    until_refused(root, anonymous=before["anonymous"] + 50, password=before["password"] + 1)
    check(refusals(root)["key"], before["key"] + 50)
    check(root.ask(DROP, b"eu-own"), [OK])
    for client in flood:
        client.socket.close()


def chapter_many(kv, lockstep, tasks, file, spindle, keys, *publishers):
    """Replies of every size, pipelined, through the cipher."""
    root = Client(kv, "eve", keys=keys)
    root.socket.sndhwm = root.socket.rcvhwm = 0
    check(root.ask(CREATE, b"eu-own"), [OK])
    sizes = [0, 1, 200, 255, 256, 1000, 65_000, 1_000_000]
    for number, size in enumerate(sizes):
        check(root.ask(UPDATE, b"eu-own", bytes([number]), bytes([number]) * size), [OK])
    for _ in range(50):
        for number in range(len(sizes)):
            root.socket.send_multipart([bytes([GET]), b"eu-own", bytes([number])])
    for _ in range(50):
        for number, size in enumerate(sizes):
            check(root.socket.recv_multipart(), [OK, bytes([number]) * size])
    check(root.ask(DROP, b"eu-own"), [OK])


def refused(endpoint, topics=None, **login):
    """Whether a client is refused in its handshake. It tries no second time."""
    client = Client(endpoint, **login, reconnects=False, topics=topics)
    event = client.event(*FAILED, zmq.EVENT_HANDSHAKE_SUCCEEDED)
    client.socket.close()
    return event in FAILED


def chapter_refused(kv, lockstep, tasks, file, spindle, keys, publish, feed, lockstep_publish):
    root = Client(kv, "root", password="ibis")
    check(root.ask(PING), [OK])
    for endpoint in (kv, lockstep, tasks, publish, feed, lockstep_publish):
        topics = None if endpoint in (kv, lockstep, tasks) else [b""]
        # Each wrong password makes the next one wait longer, so not every endpoint gets every one.
        wrong = {kv: ["ada", "eve"], feed: [], lockstep_publish: []}.get(endpoint, ["ada"])
        logins = [{"user": user, "password": "egret"} for user in wrong]
        for login in (*logins, {"user": "unknown", "keys": keys}, {}):
            check((endpoint, login, refused(endpoint, topics, **login)), (endpoint, login, True))
    # Those who are known are served all the same, and at once.
    check(Client(kv, "ada", keys=keys).ask(PING), [OK])
    # Every endpoint has counted its own.
    until_refused(root, password=5, key=6, anonymous=6)


def chapter_lockstep(kv, lockstep, tasks, file, spindle, keys, *publishers):
    root = Client(kv, "root", password="ibis")
    for table in (b"eu-own", b"us"):
        check(root.ask(CREATE, table), [OK])
        check(root.ask(UPDATE, table, b"k", b"v"), [OK])

    def say(client, argument):
        client.socket.send_multipart([b"", argument])
        return client.socket.recv_multipart()[1]

    for login in ({"password": "heron"}, {"keys": keys}):
        ada = Client(lockstep, "ada", **login)
        for table, answer, second in ((b"eu-own", b"ok", b"v"), (b"us", b"error", DENIED)):
            check([say(ada, part) for part in (b"4", table, b"k", b"6")], [b"ok", b"ok", answer, second])
    for table in (b"eu-own", b"us"):
        check(root.ask(DROP, table), [OK])


def chapter_tasks(kv, lockstep, tasks, file, spindle, keys, *publishers):
    """What a user may not do is answered like an unknown request: 0B 02 and its first byte."""

    def ask(client, request):
        client.socket.send(request)
        return client.socket.recv()

    def run(data):
        return len(data).to_bytes(4, "big") + data

    add = b"\x02" + run(b"key") + run(b"value")
    for login in ({"password": "heron"}, {"keys": keys}):
        ada = Client(tasks, "ada", **login)
        check(ask(ada, add), b"\x02")
        check(ask(ada, b"\x01"), b"\x01\0\0\0\x01")
        check(ask(ada, b"\x0c" + run(b"key")), b"\x12")
        check(ask(ada, b"\x08"), b"\x0b\x02\x08")
    eve = Client(tasks, "eve", keys=keys)
    check(ask(eve, b"\x0b"), b"\x11")
    check(ask(eve, b"\x01"), b"\x0b\x02\x01")
    check(ask(eve, add), b"\x0b\x02\x02")
    check(ask(Client(tasks, "root", password="ibis"), b"\x01"), b"\x01\0\0\0\0")


def chapter_topics(kv, lockstep, tasks, file, spindle, keys, publish, feed, lockstep_publish):
    """Root writes. Each subscriber receives what it may read, and nothing else."""
    root = Client(kv, "root", password="ibis")
    for table in (b"us", b"eu-own", b"eu-x"):
        check(root.ask(CREATE, table), [OK])
    counter = iter(range(1 << 30))

    def write(table):
        check(root.ask(UPDATE, table, b"key%d" % next(counter), b"v"), [OK])

    def plain(name):
        return name

    def with_length(name):
        return bytes([len(name)]) + name

    def with_nul(name):
        return name + b"\0"

    rows = [(publish, plain, plain), (lockstep_publish, plain, with_nul), (feed, with_length, with_length)]
    for endpoint, topic, begins in rows:
        watch = Client(endpoint, "root", password="ibis", topics=[b""])
        while not watch.socket.poll(20):
            write(b"us")
        for user, login, own in (
            ("ada", {"password": "heron"}, b"eu-x"),
            ("ada", {"keys": keys}, b"eu-x"),
            ("eve", {"keys": keys}, b"eu-own"),
        ):
            others = {b"us", b"eu-x", b"eu-own"} - {own}
            forbidden = [begins(other) for other in others if user == "eve" or other == b"us"]
            for topics in ([b""], [topic(b"us"), topic(own)], [topic(own)[:2], topic(b"us"), b""]):
                client = Client(endpoint, user, **login, topics=topics)
                while not client.socket.poll(20):
                    write(own)

                def receive_the_end():
                    """Reads up to a change that is the last one, and was written after all the others."""
                    write(own)
                    last = b"key%d" % (next(counter) - 1)
                    while True:
                        message = client.socket.recv_multipart()
                        check([name for name in forbidden if message[0].startswith(name)], [])
                        if last in b"".join(message):
                            return

                for other in others:
                    write(other)
                receive_the_end()
                if endpoint == feed:
                    # A bookmark of all that has changed comes within a second, to those who may read it.
                    while watch.socket.poll(0):
                        watch.socket.recv_multipart()
                    write(b"us")
                    while True:
                        message = watch.socket.recv_multipart()
                        if message[0] == topic(b"us") and message[1][1] == 2:
                            break
                    receive_the_end()
                # One of two subscriptions to the same ends, and the other stays.
                if topics[-1] == b"" and len(topics) == 3:
                    client.socket.unsubscribe(topics[0])
                    write(b"us")
                    receive_the_end()
                client.socket.close()
    for table in (b"us", b"eu-own", b"eu-x"):
        check(root.ask(DROP, table), [OK])


def chapter_burst(kv, lockstep, tasks, file, spindle, keys, publish, feed, lockstep_publish):
    """More than the sockets hold goes to a sealed subscriber that reads late, and nothing is lost."""
    root = Client(kv, "root", password="ibis")
    root.socket.sndhwm = 0
    check(root.ask(CREATE, b"eu-own"), [OK])
    count = 4_000
    subscribers = []
    for topics, login in (([b""], {"keys": keys}), ([b"\x06eu-own"], {"keys": keys})):
        client = Client(feed, "eve", **login, topics=topics)
        while not client.socket.poll(20):
            check(root.ask(UPDATE, b"eu-own", b"first", b""), [OK])
        subscribers.append(client)
    for number in range(count):
        root.socket.send_multipart([bytes([UPDATE]), b"eu-own", b"<%d>" % number, bytes(3_000)])
    for number in range(count):
        check(root.socket.recv_multipart(), [OK])
    for client in subscribers:
        missing = {b"<%d>" % number for number in range(count)}
        while missing:
            missing -= set(re.findall(rb"<\d+>", client.socket.recv_multipart()[1]))
    check(root.ask(DROP, b"eu-own"), [OK])


def chapter_removed(kv, lockstep, tasks, file, spindle, keys, *publishers):
    clients = [Client(endpoint, "ada", **login, topics=[b""] if endpoint in publishers else None)
               for endpoint in (kv, lockstep, tasks, *publishers)
               for login in ({"password": "heron"}, {"keys": keys})]
    listener = Client(publishers[0], "root", password="ibis", topics=[b""])
    stays = Client(kv, "root", password="ibis")
    check(stays.ask(PING), [OK])
    for client in clients:
        check(client.event(*FAILED, zmq.EVENT_HANDSHAKE_SUCCEEDED), zmq.EVENT_HANDSHAKE_SUCCEEDED)
    subprocess.run([spindle, "user", "remove", "ada", "--users", file], check=True)
    for client in clients:
        check(client.event(zmq.EVENT_DISCONNECTED), zmq.EVENT_DISCONNECTED)
        client.socket.close()
    check(refused(kv, user="ada", password="heron"), True)
    check(refused(kv, user="ada", keys=keys), True)
    check(stays.ask(PING), [OK])
    check(stays.ask(CREATE, b"us"), [OK])
    while not listener.socket.poll(20):
        check(stays.ask(UPDATE, b"us", b"k", b"v"), [OK])
    check(stays.ask(DROP, b"us"), [OK])
    import zmq.utils.monitor as monitor

    for client in (stays, listener):
        while client.monitor.poll(0):
            if monitor.recv_monitor_message(client.monitor)["event"] == zmq.EVENT_DISCONNECTED:
                raise AssertionError("others stay connected")


globals()[f"chapter_{sys.argv[1]}"](*sys.argv[2:])
