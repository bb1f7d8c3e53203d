"""The options of Celery's transport and results."""

import pytest
from server import nowhere

celery = pytest.importorskip("celery")
from kombu import Connection  # noqa: E402

import spindle.celery  # noqa: E402, F401
from spindle.celery import options  # noqa: E402


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch):
    monkeypatch.setattr(options, "_named", set())


def transport(**given):
    return Connection(f"spindle://{nowhere()}//", transport_options=given).transport


def results(**given):
    app = celery.Celery("options", backend=f"spindle://{nowhere()}/", set_as_current=False)
    app.conf.result_backend_transport_options = given
    return app.backend


@pytest.mark.parametrize("make, setting", [(transport, options.BROKER), (results, options.RESULTS)])
def test_an_option_that_nobody_reads_is_named_once(make, setting, caplog):
    names = ["leese", "priority_steps", "queue_order_strategy", "visibility_timeout"]
    for _ in range(2):
        make(**dict.fromkeys(names, 5))
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == len(names)
    assert all(setting in warning and repr(name) in warning for name, warning in zip(names, warnings)), warnings
    assert warnings[-1].endswith("here it is 'lease'") == (make is transport)


def test_options_that_somebody_reads_are_not_named(caplog):
    transport(lease=60, timeout=5, max_retries=3, interval_start=0, confirm_publish=True, deadletter_queue="x")
    results(durability="always", timeout=5, global_keyprefix="shop")
    with Connection(f"spindle://{nowhere()}//") as connection:
        policy = {"max_retries": 0, "interval_start": 0, "interval_step": 0, "interval_max": 0, "retry_errors": ()}
        with pytest.raises(Exception, match="Is the server running"):
            connection.Producer().publish("x", routing_key="x", retry=True, retry_policy=policy)
        assert connection.transport_options, "kombu keeps its policy there"
        connection.clone().transport  # noqa: B018
    assert not caplog.records


@pytest.mark.parametrize("value", [-1, 0, float("nan"), float("inf"), 1e12, "abc", None, []])
def test_a_time_that_is_none_is_refused_and_named(value):
    for make, name in ((transport, "lease"), (transport, "timeout"), (results, "timeout")):
        with pytest.raises(ValueError, match=f"'{name}' of .*_transport_options is a positive number of seconds"):
            make(**{name: value})
    with pytest.raises(ValueError, match="'lease' of broker_transport_options"):
        Connection(f"spindle://{nowhere()}//", transport_options={"lease": value}).Producer().publish("x", routing_key="x")


def test_an_option_in_the_url_of_the_broker_is_refused():
    """kombu does it: it takes none there."""
    with pytest.raises(TypeError, match="leese"):
        Connection(f"spindle://{nowhere()}//?leese=5")
