"""The application of ``speed.py``. The worker writes when its last task has run, and how long all have taken."""

import os
import threading
import time

import celery

import spindle.celery  # noqa: F401

app = celery.Celery("speed", broker=os.environ["SPEED_BROKER"])
app.conf.update(
    task_acks_late=os.environ["SPEED_ACKS"] == "late",
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)
_lock = threading.Lock()
_times = []


@app.task(name="nothing")
def nothing(count):
    with _lock:
        _times.append(time.monotonic())
        if len(_times) == count:
            with open(os.environ["SPEED_RESULT"], "w", encoding="ascii") as found:
                found.write(f"{_times[-1] - _times[0]}")
