"""Why a message is rejected. Celery's worker gives the message no reason, so this notes the failure of its task
there.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

from celery.exceptions import Reject

from .._failures import reason_of


def of(error: Any) -> str:
    """The reason that an exception gives, in a line.

    >>> of(OSError("no route")), of(Reject("bad address", requeue=False))
    ('OSError: no route', 'bad address')
    """
    if isinstance(error, Reject):
        given = error.reason
        return reason_of(given) if isinstance(given, BaseException) else str(given or "rejected")
    return reason_of(error) if isinstance(error, BaseException) else str(error)


def _noting(function: Callable[..., Any], name: Callable[..., str]) -> Callable[..., Any]:
    @functools.wraps(function)
    def noted(request: Any, *args: Any, **kwargs: Any) -> Any:
        # The worker rejects the message in a later turn of its event loop.
        request._message.reject_reason = name(*args, **kwargs)
        return function(request, *args, **kwargs)

    noted.__dict__["is_noting"] = True
    return noted


def _of_failure(exc_info: Any, *args: Any, **kwargs: Any) -> str:
    error = exc_info.exception
    # Celery wraps the exceptions of its processes.
    return of(getattr(error, "exc", error) if type(error).__name__ == "ExceptionWithTraceback" else error)


def _of_timeout(soft: Any, timeout: Any, *args: Any, **kwargs: Any) -> str:
    return f"the time limit of {timeout} s was exceeded"


def _noting_unread(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def noted(consumer: Any, body: Any, message: Any, *error: Any, **kwargs: Any) -> Any:
        message.reject_reason = f"{kind}: {of(error[0])}" if error else kind
        return function(consumer, body, message, *error, **kwargs)

    noted.__dict__["is_noting"] = True
    return noted


def install(**_: Any) -> None:
    """Celery's requests note the reasons of their failures. Workers call it when they begin."""
    from celery.worker.consumer import Consumer
    from celery.worker.request import Request

    for name, kind in (
        ("on_unknown_message", "no task of Celery"),
        ("on_unknown_task", "the worker has no task of this name"),
        ("on_invalid_task", "no task of Celery"),
    ):
        function = getattr(Consumer, name)
        if not getattr(function, "is_noting", False):
            setattr(Consumer, name, _noting_unread(function, kind))
    for name, of_call in (("on_failure", _of_failure), ("on_timeout", _of_timeout)):
        function = getattr(Request, name)
        if not getattr(function, "is_noting", False):
            setattr(Request, name, _noting(function, of_call))
