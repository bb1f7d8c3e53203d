"""A proxy in front of an endpoint, which cuts its connections."""

import select
import socket
import threading


class Cutter:
    def __init__(self, endpoint):
        host, _, port = endpoint[6:].rpartition(":")
        self.target = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.lock = threading.Lock()
        self.sockets = []
        self.is_stopped = self.is_closed = False
        self.thread = threading.Thread(target=self.accept, daemon=True)
        self.thread.start()

    def accept(self):
        while not self.is_closed:
            if not select.select([self.listener], [], [], 0.02)[0]:
                continue
            near, _ = self.listener.accept()
            with self.lock:
                if self.is_stopped:
                    near.close()
                    continue
            try:
                far = socket.create_connection(self.target)
            except OSError:
                near.close()
                continue
            with self.lock:
                self.sockets += [near, far]
            for one, other in ((near, far), (far, near)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self.pass_on, args=(one, other), daemon=True).start()

    @staticmethod
    def pass_on(one, other):
        try:
            while data := one.recv(65536):
                other.sendall(data)
        except OSError:
            pass
        for end in (one, other):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        """Ends all connections. New ones are made."""
        with self.lock:
            sockets, self.sockets = self.sockets, []
        for end in sockets:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def stop(self):
        """Ends all connections, and those that come."""
        with self.lock:
            self.is_stopped = True
        self.cut()

    def start(self):
        """Accepts connections again."""
        with self.lock:
            self.is_stopped = False

    def close(self):
        self.is_closed = True
        self.thread.join()
        self.listener.close()
        self.cut()
