"""The messages of kombu as tasks of a queue: their bytes, keys and options.

```text
value   JSON of headers, properties and content type │ newline │ body as it is
key     the delivery tag, made at the first try of a publish and kept when kombu repeats it
```
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any, Dict, Optional

from celery.utils.time import maybe_iso8601
from kombu.utils.json import dumps
from kombu.utils.uuid import uuid

from .._queue_records import PRIORITY, add_options

# The largest priority of AMQP.
AMQP_PRIORITY_MAX = 255
# Messages that are neither tasks nor bound for a queue with a time-out of its own, such as results of "rpc://", go after
# so many seconds. Otherwise those of a client that has died would stay.
TRANSIENT_SECONDS = 86_400.0


# The properties of a message of AMQP, and those of kombu. Others are left out, as AMQP does.
_PROPERTIES = frozenset(
    "app_id cluster_id content_encoding content_type correlation_id delivery_info delivery_mode expiration message_id "
    "priority reply_to timestamp type user_id".split()
)


class PublishTag(str):
    """A delivery tag that this process has made. That of a message that was received is plain text: who publishes such a
    message again publishes another one.
    """

    __slots__ = ()


def tag_of(properties: Dict[str, Any]) -> str:
    """The delivery tag of a publish. When kombu repeats it, it hands over the same properties."""
    tag = properties.get("delivery_tag")
    if not isinstance(tag, PublishTag):
        tag = properties["delivery_tag"] = PublishTag(uuid())
    return tag


def encode(message: Dict[str, Any]) -> bytes:
    """The value of a message."""
    body = message.get("body") or b""
    envelope = {name: part for name, part in message.items() if name != "body"}
    envelope["properties"] = {name: part for name, part in message["properties"].items() if name in _PROPERTIES}
    encoded: str = dumps(envelope)
    return encoded.encode() + b"\n" + (body.encode() if isinstance(body, str) else bytes(body))


def decode(value: bytes) -> Dict[str, Any]:
    """The message of a value. Raises ValueError if it is none."""
    envelope, newline, body = value.partition(b"\n")
    message = json.loads(envelope)
    if not newline or not isinstance(message, dict) or not isinstance(message.get("properties"), dict):
        raise ValueError("this is no message of kombu")
    message["body"] = body
    return message


def _is_task(message: Dict[str, Any]) -> bool:
    return bool((message.get("headers") or {}).get("task"))


def _delay(message: Dict[str, Any]) -> float:
    """The seconds until a task is due. A time without a zone is left to the worker, which knows the zone."""
    eta = (message.get("headers") or {}).get("eta")
    if not eta or not _is_task(message):
        return 0.0
    due = maybe_iso8601(eta)
    if not isinstance(due, datetime) or due.tzinfo is None:
        return 0.0
    return max(0.0, (due - datetime.now(timezone.utc)).total_seconds())


def _expires(message: Dict[str, Any], ttl: Optional[float]) -> Optional[float]:
    """The seconds after which a message goes. A task never does: its worker marks it as revoked, so that results and
    chords do not wait for ever.
    """
    if _is_task(message):
        return None
    given = message["properties"].get("expiration")
    bounds = [ttl, None if given is None else int(given) / 1000]
    if message["properties"].get("delivery_mode") == 1 and ttl is None:
        bounds.append(TRANSIENT_SECONDS)
    return min((bound for bound in bounds if bound is not None), default=None)


def options_of(message: Dict[str, Any], ttl: Optional[float]) -> bytes:
    """The options of the task that a message becomes. ``ttl``: the seconds that a message stays in this queue."""
    try:
        priority = int(message["properties"].get("priority") or 0)
    except (TypeError, ValueError):
        priority = 0
    place = PRIORITY - max(0, min(priority, AMQP_PRIORITY_MAX))
    return add_options(place, _delay(message), expires=_expires(message, ttl))
