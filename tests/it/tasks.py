"""The task queue as pyzmq sees it, from PROTOCOL.md alone.

usage: tasks.py ENDPOINT
"""

import struct
import sys
import time

import zmq

ENDPOINT = sys.argv[1]
CONTEXT = zmq.Context()


def socket(kind):
    """A connected socket that does not wait for ever."""
    made = CONTEXT.socket(kind)
    made.setsockopt(zmq.LINGER, 0)
    made.setsockopt(zmq.RCVTIMEO, 10_000)
    made.connect(ENDPOINT)
    return made


REQ = socket(zmq.REQ)


def run(data):
    """A length of four bytes, and so many bytes."""
    return struct.pack(">I", len(data)) + data


def long(number):
    """Eight bytes."""
    return struct.pack(">Q", number)


def ask(request):
    """What a REQ client is answered."""
    REQ.send(request)
    answer = REQ.recv_multipart()
    assert len(answer) == 1, answer
    return answer[0]


def expect(request, answer):
    """The answer is that, byte for byte."""
    got = ask(request)
    assert got == answer, f"{request.hex()}: {got.hex()} instead of {answer.hex()}"


def add(key, value, mode=b""):
    return b"\x02" + run(key) + run(value) + mode


def lend(timeout, mode=2):
    return b"\x04" + long(timeout) + bytes([mode])


def repay(lend_key, key, value, status):
    return b"\x05" + long(lend_key) + run(key) + run(value) + bytes([status])


def take(key, timeout=600_000):
    """Lends the next task, which has this key."""
    answer = ask(lend(timeout))
    assert answer[:1] == b"\x06" and answer[9:].startswith(run(key)), answer
    return struct.unpack(">Q", answer[1:9])[0]


def every_reply():
    expect(b"\x0b", b"\x11")
    expect(b"\x01", b"\x01" + b"\0\0\0\0")
    expect(lend(1_000), b"\x10")
    expect(add(b"a", b"1"), b"\x02")
    expect(add(b"a", b"2"), b"\x03")
    expect(add(b"b", b"2", b"\x02"), b"\x02")
    expect(add(b"c", b"3", b"\x01"), b"\x02")
    expect(b"\x01", b"\x01" + b"\0\0\0\x03")
    expect(b"\x03" + run(b"b") + run(b"two"), b"\x04")
    expect(b"\x03" + run(b"x") + run(b""), b"\x05")
    expect(b"\x09" + run(b"b"), b"\x0d" + run(b"two"))
    expect(b"\x09" + run(b"x"), b"\x0e")
    held = take(b"c")
    expect(repay(held + 1, b"c", b"", 2), b"\x05")
    expect(repay(held, b"a", b"", 2), b"\x05")
    expect(b"\x06" + long(held) + run(b"c") + long(60_000), b"\x08")
    expect(b"\x06" + long(held + 1) + run(b"c") + long(60_000), b"\x09")
    expect(b"\x06" + long(held) + run(b"c") + long(0), b"\x08")
    expect(b"\x06" + long(held) + run(b"c") + long(60_000), b"\x09")
    again = take(b"c")
    assert again > held
    expect(repay(again, b"c", b"done", 4), b"\x07")
    expect(add(b"c", b"3"), b"\x03")
    expect(b"\x09" + run(b"c"), b"\x0d" + run(b"done"))
    expect(b"\x0a", b"\x0f")
    expect(b"\x0c" + run(b"c"), b"\x12")
    expect(b"\x0c" + run(b"c"), b"\x13")
    expect(add(b"c", b"3", b"\x01"), b"\x02")
    again = take(b"c")
    expect(repay(again + 1, b"c", b"ignored", 7), b"\x05")
    expect(repay(again, b"c", b"ignored", 7), b"\x07")
    expect(repay(again, b"c", b"ignored", 7), b"\x05")
    expect(b"\x09" + run(b"c"), b"\x0e")
    expect(b"\x01" + b"\xee", b"\x01" + b"\0\0\0\x02")


def every_error():
    expect(b"", b"\x0b\x01" + struct.pack(">II", 1, 0))
    expect(b"\xff", b"\x0b\x02\xff")
    for request, field, required, given in [
        (b"\x02\0", 3, 4, 1),
        (b"\x02" + run(b"abc")[:6], 4, 3, 2),
        (b"\x02" + run(b"k"), 5, 4, 0),
        (b"\x02" + run(b"k") + b"\0\0\0\x09v", 6, 9, 1),
        (b"\x04\0", 7, 8, 1),
        (b"\x04" + long(1), 51, 1, 0),
        (b"\x05", 8, 8, 0),
        (b"\x05" + long(1) + b"\0", 9, 4, 1),
        (b"\x05" + long(1) + b"\0\0\0\x02k", 10, 2, 1),
        (b"\x05" + long(1) + run(b"k"), 11, 4, 0),
        (b"\x05" + long(1) + run(b"k") + b"\0\0\0\x02v", 12, 2, 1),
        (b"\x05" + long(1) + run(b"k") + run(b"v"), 13, 1, 0),
        (b"\x03", 39, 4, 0),
        (b"\x03\0\0\0\x02k", 40, 2, 1),
        (b"\x03" + run(b"k"), 41, 4, 0),
        (b"\x03" + run(b"k") + b"\0\0\0\x01", 42, 1, 0),
        (b"\x06\0", 43, 8, 1),
        (b"\x06" + long(1), 44, 4, 0),
        (b"\x06" + long(1) + b"\0\0\0\x01", 45, 1, 0),
        (b"\x06" + long(1) + run(b"k") + b"\0\0", 46, 8, 2),
        (b"\x09", 47, 4, 0),
        (b"\x09\0\0\0\x01", 48, 1, 0),
        (b"\x0c", 57, 4, 0),
        (b"\x0c\0\0\0\x01", 58, 1, 0),
        (b"\x02" + run(bytes(32_769)), 4, 32_769, 32_768),
        (b"\x02" + run(b"k") + run(bytes((16 << 20) + 1)), 6, (16 << 20) + 1, 16 << 20),
    ]:
        expect(request, bytes([0x0B, field]) + struct.pack(">II", required, given))
    expect(lend(1, 3), b"\x0b\x34\x03")
    for status in (0, 5, 6, 8):
        expect(repay(1, b"k", b"v", status), b"\x0b\x0e" + bytes([status]))
    expect(add(b"k", b"v", b"\x03"), b"\x0b\x36\x03")
    expect(b"\x09" + run(b"k"), b"\x0e")


def the_largest():
    key, value = bytes(range(256)) * 128, bytes(16 << 20)
    expect(add(key, value, b"\x01"), b"\x02")
    answer = ask(lend(60_000))
    assert answer[9:] == run(key) + run(value)
    expect(repay(struct.unpack(">Q", answer[1:9])[0], key, b"", 4), b"\x07")


def envelopes():
    """Every frame before the last comes back as it was, whatever the socket."""
    dealer = socket(zmq.DEALER)
    for before in [[], [b""], [b"cookie"], [b"cookie", b"", b"another", bytes(300)]]:
        dealer.send_multipart(before + [b"\x0b"])
        assert dealer.recv_multipart() == before + [b"\x11"], before
        dealer.send_multipart(before + [b"\xfe"])
        assert dealer.recv_multipart() == before + [b"\x0b\x02\xfe"], before
    named = CONTEXT.socket(zmq.DEALER)
    named.setsockopt(zmq.IDENTITY, b"a name of its own")
    named.setsockopt(zmq.RCVTIMEO, 10_000)
    named.connect(ENDPOINT)
    named.send(b"\x0b")
    assert named.recv_multipart() == [b"\x11"]
    named.close(0)
    for number in range(2_000):
        dealer.send_multipart([str(number).encode(), add(b"p%d" % number, b"v")])
    for number in range(2_000):
        assert dealer.recv_multipart() == [str(number).encode(), b"\x02"], number
    for number in range(2_000):
        dealer.send(b"\x0c" + run(b"p%d" % number))
        assert dealer.recv() == b"\x12"


def blocked():
    """Who waits is served in the order of coming; who is gone meanwhile takes nothing along."""
    for key in [b"a", b"b"]:
        expect(b"\x0c" + run(key), b"\x12")
    waiting = [socket(zmq.DEALER) for _ in range(4)]
    for number, one in enumerate(waiting):
        one.send(lend(60_000, 1))
        # In order: the next client asks when this one is known to wait. A Stats is answered after all requests sent
        # before it.
        one.send(b"\x0b")
        assert one.recv() == b"\x11", number
    waiting[1].close(0)
    gone = time.monotonic() + 0.5
    while time.monotonic() < gone:
        expect(b"\x0b", b"\x11")
    for key in [b"first", b"second", b"third"]:
        expect(add(key, key), b"\x02")
    answers = [waiting[number].recv() for number in (0, 2, 3)]
    keys = [answer[13:13 + answer[12]] for answer in answers]
    assert keys == [b"first", b"second", b"third"], keys
    expect(b"\x01", b"\x01" + b"\0\0\0\0")


every_reply()
every_error()
the_largest()
envelopes()
blocked()
print("done")
