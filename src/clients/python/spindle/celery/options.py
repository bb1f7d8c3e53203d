"""The options of the transport and of the results. An option that nobody reads is named in the log, once a process."""

from __future__ import annotations

import logging
import math
from typing import Any, Dict, FrozenSet, Set, Tuple

_log = logging.getLogger("spindle")
BROKER = "broker_transport_options"
RESULTS = "result_backend_transport_options"
# What Spindle reads of each setting, and what kombu and Celery read besides: how they connect and publish again.
_OWN = {
    BROKER: frozenset(("lease", "timeout", "curve", "deadletter_queue")),
    RESULTS: frozenset(("durability", "timeout")),
}
_FOREIGN: Dict[str, FrozenSet[str]] = {
    BROKER: frozenset(
        "callback confirm_publish connect_retries_timeout errback interval_max interval_start interval_step max_retries "
        "on_revive polling_interval retry_errors".split()
    ),
    RESULTS: frozenset(("global_keyprefix",)),
}
# Options of other transports that have a name of their own here.
_HERE = {"visibility_timeout": "lease"}
# A time is below so many seconds, as a TTL is.
_SECONDS_BOUND = 1 << 32
_named: Set[Tuple[str, str]] = set()


def check(setting: str, options: Dict[str, Any]) -> None:
    """Names the options that nobody reads."""
    for name in options:
        if name in _OWN[setting] or name in _FOREIGN[setting] or (setting, name) in _named:
            continue
        _named.add((setting, name))
        here = _HERE.get(name)
        own = ", ".join(sorted(_OWN[setting]))
        hint = f"here it is {here!r}" if here in _OWN[setting] else f"known are {own}"
        _log.warning("%s has the option %r, which nobody reads: %s", setting, name, hint)


def seconds(setting: str, options: Dict[str, Any], name: str, default: float) -> float:
    """The time of an option. Raises ValueError if it is none."""
    given = options.get(name, default)
    try:
        found = float(given)
    except (TypeError, ValueError):
        found = math.nan
    if not 0 < found < _SECONDS_BOUND:
        raise ValueError(f"{name!r} of {setting} is a positive number of seconds below 2^32, not {given!r}")
    return found
