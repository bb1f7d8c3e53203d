"""Servers that answer nonsense."""

import threading

import pytest
import zmq
from conftest import PATIENCE

import spindle


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
