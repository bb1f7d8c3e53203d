"""What Celery's worker does with the message of a task: whether it can read it, and whether its pool has got it.

```text
deliver ──► fault_of ──► none: a request is made of it, which is not begun ──► its pool gets it: begun
               └──► it is buried with the reason
```
Celery's worker ends if it gets a task that it cannot read. The message would go back, and end the next worker. It
acknowledges a body that it cannot decode, and the task would be gone.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Callable, Optional, Tuple

from .._failures import reason_of
from .channel import Message

_log = logging.getLogger("spindle")
_NUMBERS = (int, float, type(None))


def fault_of(message: Any) -> Optional[str]:
    """Why Celery's worker cannot make a request of a message. None: it can, or it refuses the message by itself."""
    try:
        payload = message.payload
    except Exception as error:
        return reason_of(error)
    has_fields = "task" in message.headers
    fields = message.headers if has_fields else payload
    if not isinstance(fields, dict) or "task" not in fields:
        return None
    return _fault_of_fields(fields) or (_fault_of_body(payload) if has_fields else None)


def _fault_of_fields(fields: Any) -> Optional[str]:
    for name in ("task", "id"):
        if not isinstance(fields.get(name), str):
            return f"its {name} is of type {type(fields.get(name)).__name__}"
    limits = fields.get("timelimit") or (None, None)
    is_pair = isinstance(limits, (list, tuple)) and len(limits) == 2
    if not is_pair or not all(isinstance(limit, _NUMBERS) for limit in limits):
        return "its timelimit is no pair of numbers"
    return None


def _fault_of_body(payload: Any) -> Optional[str]:
    # The arguments of a task by name come from publishers that speak both protocols of Celery.
    if isinstance(payload, dict) and "args" in payload:
        return None
    kinds: Tuple[Any, ...] = ((list, tuple), dict, (dict, type(None)))
    is_body = isinstance(payload, (list, tuple)) and len(payload) == len(kinds)
    if not is_body or not all(isinstance(part, kind) for part, kind in zip(payload, kinds)):
        return "its body is not made of args, kwargs and embed"
    return None


def _reading(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def created(consumer: Any, *args: Any, **kwargs: Any) -> Any:
        handle = create(consumer, *args, **kwargs)

        def on_message(message: Any) -> Any:
            if not isinstance(message, Message):
                return handle(message)
            fault = fault_of(message)
            if fault is None:
                message.is_begun = False
                return handle(message)
            _log.error("a message is buried, since Celery cannot read its task: %s", fault)
            message.reject_reason = f"no task of Celery: {fault}"
            return message.reject_log_error(_log, consumer.connection_errors)

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
