"""PLAIN and CURVE, against a ROUTER with a ZAP authenticator: the server has neither yet."""

import asyncio
import threading

import pytest
import zmq
import zmq.auth.thread
from conftest import PATIENCE

import spindle
from spindle import aio


class Guarded:
    """A ROUTER that answers OK to everyone who is let in."""

    def __init__(self, configure):
        self.context = zmq.Context()
        self.authenticator = zmq.auth.thread.ThreadAuthenticator(self.context)
        self.authenticator.start()
        self.authenticator.configure_plain(domain="*", passwords={"ada": "secret"})
        self.authenticator.configure_curve(domain="*", location=zmq.auth.CURVE_ALLOW_ANY)
        self.router = self.context.socket(zmq.ROUTER)
        self.router.linger = 0
        configure(self.router)
        self.endpoint = f"tcp://127.0.0.1:{self.router.bind_to_random_port('tcp://127.0.0.1')}"
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.answer)
        self.thread.start()

    def answer(self):
        while not self.stopped.is_set():
            if self.router.poll(20):
                routing_id, request_id, empty, *_ = self.router.recv_multipart()
                self.router.send_multipart([routing_id, request_id, empty, b"\x01"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join()
        self.router.close()
        self.authenticator.stop()
        self.context.term()


def plain(router):
    router.plain_server = True


def test_a_user_with_the_password_is_let_in():
    with Guarded(plain) as server:
        with spindle.Client(server.endpoint, timeout=PATIENCE, user="ada", password="secret") as client:
            client.ping()


def test_a_wrong_password_is_denied():
    with Guarded(plain) as server:
        with spindle.Client(server.endpoint, timeout=0.5, user="ada", password="wrong") as client:
            with pytest.raises(spindle.Denied):
                client.ping()


def test_a_key_of_the_server_encrypts_with_or_without_keys_of_the_client():
    public, secret = zmq.curve_keypair()

    def curve(router):
        router.curve_server = True
        router.curve_secretkey = secret
        router.curve_publickey = public

    own_public, own_secret = zmq.curve_keypair()
    with Guarded(curve) as server:
        for keys in (spindle.Curve(public.decode()), spindle.Curve(public, own_public, own_secret)):
            with spindle.Client(server.endpoint, timeout=PATIENCE, curve=keys) as client:
                client.ping()

        async def tasks():
            async with aio.Client(server.endpoint, timeout=PATIENCE, curve=spindle.Curve(public)) as client:
                await asyncio.gather(*(client.ping() for _ in range(50)))

        asyncio.run(tasks())
        with spindle.Client(server.endpoint, timeout=0.5, curve=spindle.Curve(own_public)) as client:
            with pytest.raises((spindle.Denied, spindle.Timeout)):
                client.ping()


def test_a_request_fails_at_once_when_an_encrypted_connection_is_lost():
    public, secret = zmq.curve_keypair()

    def curve(router):
        router.curve_server = True
        router.curve_secretkey = secret

    with Guarded(curve) as server:
        with spindle.Client(server.endpoint, timeout=PATIENCE, curve=spindle.Curve(public)) as client:
            client.ping()
            server.stopped.set()
            server.thread.join()
            errors = []

            def ask():
                try:
                    client.ping()
                except spindle.Error as error:
                    errors.append(error)

            asking = threading.Thread(target=ask)
            asking.start()
            server.router.poll()
            server.router.close()
            asking.join()
            assert [type(error) for error in errors] == [spindle.Disconnected]


def test_a_server_that_answers_nonsense_is_told():
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    endpoint = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
    replies = [[b"\x01", b"too", b"many"], [b"\x00"], [b"\x07", b"?"], [], [b"\x00", b"NEW REASON"]]

    def answer():
        for reply in replies:
            routing_id, request_id, empty, *_ = router.recv_multipart()
            router.send_multipart([routing_id, b"another id", empty, b"\x01"])
            router.send_multipart([routing_id, request_id, empty, *reply])

    thread = threading.Thread(target=answer)
    thread.start()
    with spindle.Client(endpoint, timeout=PATIENCE) as client:
        for _ in range(4):
            with pytest.raises(spindle.Malformed):
                client.ping()
        with pytest.raises(spindle.Refused, match="NEW REASON"):
            client.ping()
    thread.join()
    context.destroy(0)
