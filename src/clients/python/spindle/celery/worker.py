"""What Celery's worker does with the message of a task: it is begun when the pool gets it."""

from __future__ import annotations

import functools
from typing import Any, Callable

from .channel import Message

def _reading(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def created(consumer: Any, *args: Any, **kwargs: Any) -> Any:
        handle = create(consumer, *args, **kwargs)

        def on_message(message: Any) -> Any:
            if not isinstance(message, Message):
                return handle(message)
            message.is_begun = False
            return handle(message)

        return on_message

    created.__dict__["is_reading"] = True
    return created


def _beginning(process: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(process)
    def processed(worker: Any, request: Any) -> Any:
        # A process of the pool may run it from now on.
        request.message.is_begun = True
        return process(worker, request)

    return processed


def install(**_: Any) -> None:
    """Celery's consumer reads tasks so. Workers call it when they begin."""
    from celery.worker.consumer import Consumer
    from celery.worker.worker import WorkController

    if not getattr(Consumer.create_task_handler, "is_reading", False):
        WorkController._process_task = _beginning(WorkController._process_task)
        Consumer.create_task_handler = _reading(Consumer.create_task_handler)
