"""The bytes of ZMTP, in whatever pieces they come."""

import pytest

import spindle
from spindle import _zmtp

# Pairs of a status and a value, as bulk replies have them, with and without frames between that are none.
PAIRS = [frame for number in range(600) for frame in (b"\1" if number % 90 else b"\0", b"v" * (number % 259))]
MESSAGES = [
    [b"a"],
    [b"", b"b" * 255, b"c" * 256],
    [b"d" * 70_000, b""],
    [bytes(3)] * 9,
    [b"\1"] * 1000,
    [b"8 bytes.", b"", b"\1", *PAIRS],
    PAIRS[3:],
    [b"\1", b"\2"] * 400,
]


def test_messages_are_the_same_in_pieces_of_any_size():
    stream = b"".join(map(_zmtp.encode, MESSAGES)) + b"\x04\x07\x04PING\0\1"
    for size in (1, 2, 3, 7, 1000, 65_536, len(stream)):
        decoder, found = _zmtp.Decoder(), []
        for at in range(0, len(stream), size):
            found += decoder.feed(stream[at : at + size])
        assert found == MESSAGES, size
        assert [_zmtp.pong(command) for command in decoder.commands] == [b"\x04\x05\x04PONG"]


def test_a_frame_that_is_too_long_is_not_waited_for():
    with pytest.raises(spindle.Malformed, match="longer"):
        _zmtp.Decoder().feed(b"\x02" + (1 << 40).to_bytes(8, "big") + b"x")


def test_a_message_of_anything_but_bytes_is_none():
    for wrong in ([b"a", None], ["text"], [7]):
        with pytest.raises(TypeError):
            _zmtp.encode(wrong)


def test_the_handshake_refuses_other_servers():
    def greeting(mechanism=b"NULL", version=3):
        return (b"\xff" + bytes(8) + b"\x7f" + bytes((version, 0)) + mechanism.ljust(20, b"\0")).ljust(64, b"\0")

    for given, error in (
        (b"SSH-2.0", spindle.Malformed),
        (greeting(version=1), spindle.Malformed),
        (greeting(b"CURVE"), spindle.Denied),
        (greeting() + b"\x04\x0a\x05ERROR\x03400", spindle.Denied),
        (greeting() + b"\x04\x09^RROR\x03400", spindle.Denied),
        (greeting() + b"\x04\x1f\x05READY\x01a\0\0\0\0\x0bSocket-Type\0\0\0\x03PUB", spindle.Malformed),
    ):
        with pytest.raises(error):
            _zmtp.Handshake("DEALER").feed(given)


def test_the_handshake_takes_its_bytes_one_by_one():
    shake, out, is_over = _zmtp.Handshake("DEALER", "ada", "secret"), b"", False
    server = (b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"PLAIN".ljust(20, b"\0")).ljust(64, b"\0")
    messages = []
    for byte in server + b"\x04\x08\x07WELCOME\x04\x06\x05READY\x00\x01x":
        answer, is_now, found = shake.feed(bytes((byte,)))
        out, is_over, messages = out + answer, is_over or is_now, messages + found
    assert is_over and messages == [[b"x"]]
    assert out.startswith(b"\x04\x11\x05HELLO\x03ada\x06secret\x04") and b"INITIATE" in out
