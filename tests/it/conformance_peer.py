"""What the chapters on conformance share: the protocol's constants, and a client that checks its replies."""

import zmq
from specified import COMMANDS

# Each command by its name: CREATE_TABLE, UPDATE, and so on.
globals().update({command.name: bytes([command.code]) for command in COMMANDS})

OK, ERROR = b"\x01", b"\x00"
UPDATED, DELETED = b"\x00", b"\x01"
FOREVER = 2**64 - 1
# No request here takes long. A receive that waits longer has lost its message.
PATIENCE_MILLIS = 30_000

context = zmq.Context.instance()


def error(reason, *more):
    return [ERROR, reason.encode(), *more]


def be(number):
    return number.to_bytes(8, "big")


def le(number):
    return number.to_bytes(8, "little")


def millis(number):
    """The field of a TTL in milliseconds."""
    return b"\1" + be(number)


def signed(number):
    return number.to_bytes(8, "big", signed=True)


def number(frame):
    assert len(frame) == 8, frame
    return int.from_bytes(frame, "big")


def check(actual, expected, about=""):
    assert actual == expected, f"{about}: {show(actual)} instead of {show(expected)}"


def show(frames):
    if isinstance(frames, list):
        return [frame if len(frame) <= 80 else f"{frame[:20]}… ({len(frame)})" for frame in frames]
    return frames


def connect(kind, endpoint, **options):
    socket = context.socket(kind)
    socket.linger = 0
    socket.rcvtimeo = socket.sndtimeo = PATIENCE_MILLIS
    for name, value in options.items():
        setattr(socket, name, value)
    socket.connect(endpoint)
    return socket


class Client:
    """A REQ socket: it sends an empty frame before the body, and takes it off the reply."""

    def __init__(self, endpoint):
        self.socket = connect(zmq.REQ, endpoint)

    def ask(self, *frames):
        self.socket.send_multipart(frames)
        return self.socket.recv_multipart()

    def expect(self, expected, *frames):
        check(self.ask(*frames), expected, show(list(frames)))

    def ok(self, *frames):
        reply = self.ask(*frames)
        check(reply[:1], [OK], f"{show(list(frames))}: {show(reply)}")
        return reply[1:]

    def pages(self, table, count, fields, *prefix):
        """The frames of all rows of a scan, page by page."""
        cursor = b""
        while True:
            cursor, *rows = self.ok(SCAN, table, cursor, be(count), bytes([fields]), *prefix)
            assert len(cursor) <= 32, cursor
            yield rows
            if not cursor:
                return

    def entry(self, table, key):
        value, version, remaining = self.ok(GET_ENTRY, table, key)
        return value, number(version), number(remaining)
