"""Writes the client for threads from the client for asyncio: ``python unasync.py``.

Each module of ``NAMES`` in ``spindle`` is written from its namesake in ``spindle/aio``. Code, comments and docstrings
go through the same substitutions. Modules in which the two clients differ, such as ``_driver.py`` and
``_concurrency.py``, are written by hand in both folders, and have the same names for those who import them.
"""

import pathlib
import re

NAMES = (
    "_queue_source",
    "client",
    "events",
    "jobs",
    "lock",
    "mirror",
    "notifications",
    "queue",
    "table",
    "tasks",
    "worker",
)
PACKAGE = pathlib.Path(__file__).parent / "spindle"
HEADER = '# Generated from aio/{name}.py by "python unasync.py". Change that file, not this one.\n'
# In this order.
SUBSTITUTIONS = (
    (r"\bfrom \.\.", "from ."),
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__a(enter|exit|iter|next)__", r"__\1__"),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\bAwaitable, ", ""),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bspindle\.aio\.", "spindle."),
    (r"\basyncio\.Queue\b", "queue.Queue"),
    (r"\btasks of asyncio\b", "threads"),
    (r"\bTasks of asyncio\b", "Threads"),
    (r"\bcoroutine function", "function"),
    (r"\bthe event loop of the mirror\b", "a thread of the mirror"),
)


def generated(name: str) -> str:
    """The text of a module of the client for threads."""
    text = (PACKAGE / "aio" / f"{name}.py").read_text(encoding="utf-8")
    for pattern, replacement in SUBSTITUTIONS:
        text = re.sub(pattern, replacement, text)
    return HEADER.format(name=name) + text


def path_of(name: str) -> pathlib.Path:
    """The file of a module of the client for threads."""
    return PACKAGE / f"{name}.py"


if __name__ == "__main__":
    for name in NAMES:
        path_of(name).write_text(generated(name), encoding="utf-8")
