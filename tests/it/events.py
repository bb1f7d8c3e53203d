"""Every row of the table of events, as seen by Python's own HTTP client; and a worker that is no Spindle, by pyzmq."""

import http.client
import json
import struct
import sys


def ask(server, method, path, body=None):
    server.request(method, path, body)
    reply = server.getresponse()
    return reply.status, reply.getheader("Location"), json.loads(reply.read())


def rows(server):
    status, location, created = ask(server, "POST", "/events")
    assert (status, location, created["id"]) == (201, "/events/1", 1), created
    assert isinstance(created["value"], str) and 0 < len(created["value"]) <= 255
    assert ask(server, "POST", "/events/async", b"a body that nobody needs") == (202, "/events/2", {"id": 2})
    assert ask(server, "GET", "/events") == (200, None, {"count": 2})
    assert ask(server, "GET", "/events/1") == (200, None, created)
    assert ask(server, "GET", "/events/2") == (200, None, {"id": 2, "value": None})
    assert ask(server, "GET", "/events/3") == (404, None, {"error": "event not found"})
    assert ask(server, "GET", "/events/three") == (400, None, {"error": "invalid id"})
    assert ask(server, "GET", "/health") == (200, None, {"status": "ok"})
    assert ask(server, "GET", "/nowhere")[0] == 404
    assert ask(server, "PATCH", "/events")[0] == 405


def work(server, queue):
    import zmq

    socket = zmq.Context().socket(zmq.REQ)
    socket.linger = 0
    socket.connect(queue)

    def request(frame):
        socket.send(frame)
        assert socket.poll(60_000), "no answer"
        return socket.recv()

    def data(text):
        return struct.pack(">I", len(text)) + text

    lent = request(b"\x04" + struct.pack(">QB", 60_000, 1))
    assert lent[0] == 0x06 and lent[9:] == data(b"2") + data(b""), lent
    repay = b"\x05" + lent[1:9] + data(b"2") + data("Käuzchen".encode()) + b"\x04"
    assert request(repay) == b"\x07"
    assert ask(server, "GET", "/events/2") == (200, None, {"id": 2, "value": "Käuzchen"})
    assert request(repay) == b"\x05", "a value is given once"
    assert request(b"\x02" + data(b"3") + data(b"")) == b"\x0B\x02\x02", "Add is refused"
    assert request(b"\x08") == b"\x0B\x02\x08", "Terminate is refused"
    assert request(b"\x0C") == b"\x0B\x02\x0C", "Remove is refused, however short"


def main(address, queue):
    server = http.client.HTTPConnection(address, timeout=60)
    rows(server)
    if queue:
        work(server, queue)
    print("events: every row is as specified")


main(*sys.argv[1:])
