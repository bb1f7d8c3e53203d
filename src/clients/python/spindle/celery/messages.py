"""The messages of kombu as tasks of a queue: their bytes, keys and options.

```text
value   JSON of headers, properties and content type │ newline │ body as it is
key     the delivery tag, made at the first try of a publish and kept when kombu repeats it
```
"""

from __future__ import annotations

import codecs
import json
from datetime import datetime, timezone
from typing import Any, Dict, Optional

from celery.utils.time import maybe_iso8601
from kombu.transport import virtual
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
# The encodings of bodies besides UTF-8, and those of content that stays bytes.
_BODY_ENCODINGS = frozenset(virtual.Channel.codecs)
_BINARY = frozenset(("binary", "ascii-8bit"))
_NONE = type(None)


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
    """The message of a value. Raises ValueError if kombu cannot read it."""
    envelope, newline, body = value.partition(b"\n")
    message = json.loads(envelope)
    if not newline:
        raise ValueError("it has no line of properties before its body")
    _check(message)
    message["body"] = body
    return message


def _check(message: Any) -> None:
    """Raises ValueError if a part of a message has a type that kombu or Celery cannot use."""
    _expect("envelope", message, dict)
    _expect("headers", message.get("headers"), dict, _NONE)
    for name in ("content-type", "content-encoding"):
        _expect(name, message.get(name), str, _NONE)
    properties = message.get("properties")
    _expect("properties", properties, dict)
    _expect("delivery_info", properties.get("delivery_info"), dict, _NONE)
    for name in ("delivery_mode", "priority"):
        _expect(name, properties.get(name), int, float, str, _NONE)
    encoding = message.get("content-encoding") or "utf-8"
    if encoding.lower() not in _BINARY:
        try:
            codecs.lookup(encoding)
        except LookupError:
            raise ValueError(f"its content-encoding {encoding!r} is unknown") from None
    body_encoding = properties.get("body_encoding")
    _expect("body_encoding", body_encoding, str, _NONE)
    if body_encoding and body_encoding.lower() != "utf-8" and body_encoding not in _BODY_ENCODINGS:
        raise ValueError(f"its body_encoding {body_encoding!r} is unknown")


def _expect(name: str, value: Any, *kinds: type) -> None:
    if not isinstance(value, kinds):
        raise ValueError(f"its {name} is of type {type(value).__name__}")


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
