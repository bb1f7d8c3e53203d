"""The result backend of Celery, when a server cannot be reached."""

import socket

import pytest
from conftest import PATIENCE
from server import Server, nowhere

import spindle

celery = pytest.importorskip("celery")
from celery.exceptions import ImproperlyConfigured, TimeoutError  # noqa: E402

import spindle.celery  # noqa: E402, F401
from spindle.celery import backend as backends  # noqa: E402
from spindle.celery import results  # noqa: E402


@pytest.fixture(scope="module")
def server():
    server = Server("--publish", "--max-value", "1M")
    yield server
    server.end()


@pytest.fixture
def silent():
    """An endpoint at which somebody listens and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def app_of(table, publish, query="publish"):
    app = celery.Celery("results", backend=f"spindle://{table}/?{query}={publish}", set_as_current=False)
    app.conf.result_backend_transport_options = {"timeout": PATIENCE * 100}
    return app


def test_get_keeps_its_time_when_a_server_is_away(server, silent, monkeypatch):
    """Requests and pauses would take for ever, if the time of ``get()`` did not end them."""
    monkeypatch.setattr(backends, "_PAUSES", [PATIENCE * 100])
    table, publish, away = server.kv[6:], server.endpoints["publish"][6:], nowhere()
    for endpoints, named in (((table, away), away), ((away, publish), away), ((table, silent), silent), ((silent, away), silent)):
        app = app_of(*endpoints)
        for result in (app.AsyncResult("x"), app.GroupResult("g", [app.AsyncResult("y"), app.AsyncResult("z")])):
            with pytest.raises(TimeoutError, match=named) as raised:
                result.get(timeout=0.3)
            assert ("--publish" in str(raised.value)) == (endpoints[0] == table), "only if the table's server is there"


def test_get_without_a_time_fails_too_when_nobody_publishes(server, monkeypatch):
    monkeypatch.setattr(backends, "_PAUSES", [])
    monkeypatch.setattr(results, "AWAY_TURNS", 2)
    away = nowhere()
    with pytest.raises(spindle.Disconnected, match=rf"\(--publish\): tcp://{away}"):
        app_of(server.kv[6:], away).AsyncResult("x").get()


def test_a_result_that_comes_before_its_notifications_is_found(server, monkeypatch):
    """The server publishes from then on only. The time between two looks never passes."""
    monkeypatch.setattr(results, "LOOK_SECONDS", float("inf"))
    app = app_of(server.kv[6:], server.endpoints["publish"][6:])
    backend, consumer = app.backend, app.backend.result_consumer
    begin = backend.notifications
    monkeypatch.setattr(backend, "notifications", lambda: (backend.store_result("early", 5, "SUCCESS"), begin())[1])
    assert app.AsyncResult("early").get(timeout=PATIENCE) == 5
    assert consumer._away is None


def test_an_option_of_the_url_that_nobody_reads_is_refused(server):
    with pytest.raises(ImproperlyConfigured, match="unknown option 'publsh': known is publish"):
        app_of(server.kv[6:], "x", "publsh").backend
    with pytest.raises(ImproperlyConfigured, match="'publsh'"):
        app_of(server.kv[6:], "", "publsh").backend
