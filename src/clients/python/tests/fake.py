"""A server whose behaviour a test gives."""

import socket
import struct
import threading

GREETING = (b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0")).ljust(64, b"\0")


def ready(kind):
    body = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
    return bytes((4, len(body))) + body


class Fake:
    """Accepts connections, one after the other, and calls ``behave`` with each."""

    def __init__(self, behave, handshake=GREETING + ready(b"ROUTER")):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.endpoint = f"tcp://127.0.0.1:{self.port}"
        self.behave, self.handshake = behave, handshake
        self.accepted = 0
        self.thread = threading.Thread(target=self.serve)

    def serve(self):
        while True:
            connection, _ = self.listener.accept()
            if self.thread is None:
                connection.close()
                return
            self.accepted += 1
            with connection:
                try:
                    connection.sendall(self.handshake)
                    self.behave(connection)
                except OSError:
                    # The client has ended it.
                    pass

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        thread, self.thread = self.thread, None
        socket.create_connection(("127.0.0.1", self.port)).close()
        thread.join()
        self.listener.close()
