"""Jobs, events and --admin over TLS, as Python's ssl sees them.

    tls.py CHAPTER CA JOBS EVENTS ADMIN    CA: the certificate to trust
"""

import base64
import http.client
import json
import socket
import ssl
import sys

LIMIT = 60


def trusting(path):
    context = ssl.create_default_context(cafile=path)
    # The certificate of these tests is its own authority.
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    return context


def port(address):
    return int(address.rsplit(":", 1)[1])


def connect(context, address):
    plain = socket.create_connection(("localhost", port(address)), timeout=LIMIT)
    return context.wrap_socket(plain, server_hostname="localhost")


def job(context, address, *pieces):
    """The answer to a request that comes in these pieces."""
    with connect(context, address) as stream:
        for piece in pieces:
            stream.sendall(piece)
        answer = b""
        while some := stream.recv(65_536):
            answer += some
        return answer


def ask(connection, method, path, user=None):
    headers = {}
    if user:
        headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:heron".encode()).decode()
    connection.request(method, path, headers=headers)
    reply = connection.getresponse()
    return reply.status, reply.read()


def check(found, expected):
    if found != expected:
        raise AssertionError(f"{found!r}, and not {expected!r}")


def chapter_served(context, jobs, events, admin):
    data = bytes(range(256)) * 3_906
    login = b"AUTH root heron\n"
    for pieces in ([login + b"ADD big %d " % len(data) + data], [login, b"ADD big ", b"%d " % len(data), data]):
        number = job(context, jobs, *pieces)
        check(len(number), 20)
        check(job(context, jobs, login, b"GET big\n"), b"%s %d %s" % (number, len(data), data))
        # A line without its end is whole after a pause, so it comes at once.
        check(job(context, jobs, *[bytes([byte]) for byte in login], b"ACK big %s" % number), b"OK")
    check(job(context, jobs, b"GET big\n"), b"ERROR")
    for address, path in ((events, "/events"), (admin, "/stats")):
        connection = http.client.HTTPSConnection("localhost", port(address), context=context, timeout=LIMIT)
        check(ask(connection, "GET", "/health")[0], 200)
        check(ask(connection, "GET", path)[0], 401)
        status, body = ask(connection, "GET", path, "root")
        check(status, 200)
        json.loads(body)
        connection.close()
    # A client without TLS gets no answer.
    for address in (jobs, events, admin):
        with socket.create_connection(("localhost", port(address)), timeout=LIMIT) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            try:
                while some := plain.recv(4_096):
                    answer += some
            except ConnectionResetError:
                pass
            check(b"HTTP" in answer or b"ERROR" in answer, False)


def chapter_comes(context, *addresses):
    """Waits until each endpoint has the certificate."""
    for address in addresses:
        while True:
            try:
                connect(context, address).close()
                break
            except ssl.SSLCertVerificationError:
                pass


globals()[f"chapter_{sys.argv[1]}"](trusting(sys.argv[2]), *sys.argv[3:])
