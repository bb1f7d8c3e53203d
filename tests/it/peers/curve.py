"""A client on pyzmq with CURVE: DEALER and REQ for requests, SUB for a notification, and refusals of unknown peers.

    curve.py KV PUBLISH SERVER USER

SERVER is the public key of the server, USER the secret key of a user.
"""

import sys

import zmq

CREATE_TABLE, UPDATE, GET, PING = (bytes([code]) for code in (0, 2, 4, 5))
OK = b"\x01"
PATIENCE_MILLIS, LOOK_MILLIS = 20_000, 100
context = zmq.Context.instance()


def connected(kind, endpoint, server, secret):
    socket = context.socket(kind)
    socket.linger, socket.rcvtimeo = 0, PATIENCE_MILLIS
    socket.curve_secretkey, socket.curve_publickey = secret, zmq.curve_public(secret)
    socket.curve_serverkey = server
    if kind == zmq.SUB:
        socket.subscribe(b"py")
    socket.connect(endpoint)
    return socket


def ask(socket, *frames):
    socket.send_multipart(frames)
    return socket.recv_multipart()


def refuses(kv, server, secret):
    """A peer whose handshake fails receives an event of libzmq itself."""
    from zmq.utils.monitor import recv_monitor_message

    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.curve_secretkey, socket.curve_publickey = secret, zmq.curve_public(secret)
    socket.curve_serverkey = server
    monitor = socket.get_monitor_socket(
        zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        | zmq.EVENT_HANDSHAKE_SUCCEEDED)
    monitor.rcvtimeo = PATIENCE_MILLIS
    socket.connect(kv)
    assert recv_monitor_message(monitor)["event"] != zmq.EVENT_HANDSHAKE_SUCCEEDED
    socket.disable_monitor()
    socket.close()


def main(kv, publish, server, user):
    server, user = server.encode(), user.encode()
    req, dealer = (connected(kind, kv, server, user) for kind in (zmq.REQ, zmq.DEALER))
    sub = connected(zmq.SUB, publish, server, user)
    assert ask(req, CREATE_TABLE, b"py") == [OK]
    for length in (0, 1, 255, 256, 1_000):
        for _ in range(20):
            dealer.send_multipart([UPDATE, b"py", b"k", b"v" * length])
        for _ in range(20):
            assert dealer.recv_multipart() == [OK]
        assert ask(req, GET, b"py", b"k") == [OK, b"v" * length]
    # The subscription takes a moment to reach the server.
    while True:
        assert ask(req, UPDATE, b"py", b"k", b"v") == [OK]
        if sub.poll(LOOK_MILLIS):
            break
    assert sub.recv_multipart() == [b"py", b"\x00", b"k"]
    unknown = zmq.curve_keypair()
    refuses(kv, server, unknown[1])
    refuses(kv, unknown[0], user)
    assert ask(req, PING) == [OK]


main(*sys.argv[1:])
