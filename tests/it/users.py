"""Users as pyzmq sees them, with PLAIN and CURVE: who is let in, what each may do, and when it is cut off.

    users.py CHAPTER KV LOCKSTEP TASKS FILE SPINDLE KEYS    KEYS: a folder with the secret keys ada, eve and server
"""

import pathlib
import subprocess
import sys

import zmq

OK, ERROR, DENIED = b"\x01", b"\x00", b"DENIED"
CREATE, DROP, UPDATE, GET, PING, LIST, STATS, SCAN = 0, 1, 2, 4, 5, 12, 13, 14
LIMIT = 60_000
CONTEXT = zmq.Context()
# All clients live as long as the script: a monitor has its name from a descriptor, which another socket would get.
ALL = []
FAILED = (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)


def public(folder, name):
    secret = pathlib.Path(folder, name).read_text().strip().encode()
    return zmq.curve_public(secret), secret


class Client:
    """A DEALER as one user: by a password, or by a key if `keys` is the folder."""

    def __init__(self, endpoint, user=None, password=None, keys=None, reconnects=True):
        self.socket = CONTEXT.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.rcvtimeo = LIMIT
        self.socket.reconnect_ivl = 20 if reconnects else -1
        if password is not None:
            self.socket.plain_username = user.encode()
            self.socket.plain_password = password.encode()
        elif keys is not None:
            self.socket.curve_publickey, self.socket.curve_secretkey = public(keys, user)
            self.socket.curve_serverkey = public(keys, "server")[0]
        self.monitor = self.socket.get_monitor_socket()
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


def chapter_tables(kv, lockstep, tasks, file, spindle, keys):
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


def chapter_many(kv, lockstep, tasks, file, spindle, keys):
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


def refused(endpoint, **login):
    """Whether a client is refused in its handshake. It tries no second time."""
    client = Client(endpoint, **login, reconnects=False)
    event = client.event(*FAILED, zmq.EVENT_HANDSHAKE_SUCCEEDED)
    client.socket.close()
    return event in FAILED


def chapter_refused(kv, lockstep, tasks, file, spindle, keys):
    for endpoint in (kv, lockstep, tasks):
        for login in (
            {"user": "ada", "password": "egret"},
            {"user": "eve", "password": "heron"},
            {"user": "stranger", "keys": keys},
            {},
        ):
            check((endpoint, login, refused(endpoint, **login)), (endpoint, login, True))
    # Those who are known are served all the same, and at once.
    check(Client(kv, "ada", keys=keys).ask(PING), [OK])


def chapter_lockstep(kv, lockstep, tasks, file, spindle, keys):
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


def chapter_tasks(kv, lockstep, tasks, file, spindle, keys):
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


def chapter_removed(kv, lockstep, tasks, file, spindle, keys):
    clients = [Client(endpoint, "ada", **login) for endpoint in (kv, lockstep, tasks)
               for login in ({"password": "heron"}, {"keys": keys})]
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
    import zmq.utils.monitor as monitor

    while stays.monitor.poll(0):
        if monitor.recv_monitor_message(stays.monitor)["event"] == zmq.EVENT_DISCONNECTED:
            raise AssertionError("others stay connected")


globals()[f"chapter_{sys.argv[1]}"](*sys.argv[2:])
