"""One request over a connection of its own, for tasks of asyncio. ``spindle/_exchange.py`` is for threads."""

from __future__ import annotations

import asyncio

from .._jobs import ANSWER_BYTES_MAX, Place

# The time was up.
LATE = asyncio.TimeoutError


async def exchange(place: Place, request: bytes, timeout: float) -> bytes:
    """The answer to a request."""
    return await asyncio.wait_for(_exchange(place, request), timeout)


async def _exchange(place: Place, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*place[:2], ssl=place.tls)
    try:
        writer.write(place.login + request)
        answer = bytearray()
        while len(answer) <= ANSWER_BYTES_MAX:
            part = await reader.read(1 << 16)
            if not part:
                break
            answer += part
        return bytes(answer)
    finally:
        writer.close()


__all__ = ["LATE", "exchange"]
