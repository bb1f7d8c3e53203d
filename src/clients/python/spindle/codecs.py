"""Codecs turn values into bytes and back. A table has one for its values and one for its keys.

>>> from spindle import JSON, TEXT
>>> JSON.decode(JSON.encode({"colour": "grey"}))
{'colour': 'grey'}
>>> TEXT.encode("heron")
b'heron'
"""

from __future__ import annotations

import json
import pickle
from typing import Any, Callable, Generic, TypeVar, Union

T = TypeVar("T")


class Codec(Generic[T]):
    """A pair of functions: one encodes a value as bytes, the other decodes them.

    >>> number = Codec(lambda value: b"%d" % value, int)
    >>> number.decode(number.encode(7))
    7
    """

    __slots__ = ("decode", "encode")

    def __init__(self, encode: Callable[[Any], bytes], decode: Callable[[bytes], T]) -> None:
        self.encode = encode
        self.decode = decode


def as_bytes(value: Union[bytes, str, bytearray, memoryview]) -> bytes:
    """Text as UTF-8, and bytes as they are.

    >>> as_bytes("grün")
    b'gr\\xc3\\xbcn'
    """
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"expected bytes or str, or a table with a codec, not {type(value).__name__}")


def _same(value: bytes) -> bytes:
    return value


def _text(value: bytes) -> str:
    return value.decode()


def _to_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


BYTES: Codec[bytes] = Codec(as_bytes, _same)
"""Bytes as they are. Text is stored as UTF-8 and read as bytes. The default."""

TEXT: Codec[str] = Codec(as_bytes, _text)
"""Text, stored as UTF-8."""

JSON: Codec[Any] = Codec(_to_json, json.loads)
"""Anything that JSON knows."""

PICKLE: Codec[Any] = Codec(pickle.dumps, pickle.loads)
"""Any Python object. Only for tables that nobody else can write to: reading a pickle can run code."""
