"""Keys of calls: equal arguments make one key, however they are passed, in every process.

Pickles would not do. They encode equal strings differently if these are two objects, and sets have the order of their
process. So values are encoded here, with their lengths. What :mod:`pickle` can take apart is encoded by its parts.

```text
1, 1.0, True                 one number, as Python compares them
a set, a dictionary          its encoded elements in their order
a dataclass                  its type and the fields that it compares
a function, a class          its module and name
a method of an object        the object and the name
anything else                what __reduce_ex__ gives
```
"""

from __future__ import annotations

import copyreg
import dataclasses
import hashlib
import inspect
from datetime import datetime, timezone
from decimal import Decimal
from numbers import Rational, Real
from types import MethodWrapperType
from typing import Any, Callable, Dict, FrozenSet, Tuple, Union

from .codecs import as_bytes

_ATOMS = (None, Ellipsis, NotImplemented)


def hashed(*parts: bytes) -> bytes:
    """A key of 32 characters for parts of any length.

    >>> hashed(b"lock", b"birds") == hashed(b"lock", b"birds"), len(hashed(b"lock"))
    (True, 32)
    """
    return hashlib.blake2b(_joined(b"", parts), digest_size=16).hexdigest().encode()


class CallKeys:
    """The keys of the calls of a function, under which their results are stored.

    >>> keys = CallKeys(lambda a, b=2: a + b, None)
    >>> keys.of((1, 2), {}) == keys.of((1,), {"b": 2}) == keys.of((), {"a": 1.0}) != keys.of((1, 3), {})
    True
    """

    def __init__(self, function: Callable[..., Any], key: "Union[None, Callable[..., Union[bytes, str]]]") -> None:
        self.name = f"{function.__module__}.{function.__qualname__}"
        self._key = key
        if key is None:
            self._signature = inspect.signature(function)

    def of(self, arguments: Tuple[Any, ...], named: Dict[str, Any]) -> bytes:
        """The key of a call. Raises TypeError if the function does not take these arguments, or they make no key."""
        if self._key is not None:
            return as_bytes(self._key(*arguments, **named))
        bound = self._signature.bind(*arguments, **named)
        bound.apply_defaults()
        try:
            return hashed(self.name.encode(), _encoded(dict(bound.arguments), frozenset()))
        except Exception as error:
            raise TypeError(f"cached: the arguments of {self.name} make no key, so give it key=…: {error}") from error


def _joined(tag: bytes, parts: "Union[Tuple[bytes, ...], list[bytes]]") -> bytes:
    return tag + b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def _encoded(value: Any, around: FrozenSet[int]) -> bytes:
    """The value as bytes. ``around`` has the identities of what it is a part of."""
    if isinstance(value, str):
        return b"s" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return b"b" + bytes(value)
    if isinstance(value, (Real, Decimal, complex)):
        return b"n" + _number(value)
    if any(value is atom for atom in _ATOMS):
        return b"a" + repr(value).encode()
    if isinstance(value, datetime) and value.utcoffset() is not None:
        return b"t" + value.astimezone(timezone.utc).isoformat().encode()
    if inspect.isroutine(value) and not _is_bound(value) or isinstance(value, type):
        return _name_of(value)
    if id(value) in around:
        raise TypeError("one is a part of itself")
    around |= {id(value)}
    if isinstance(value, (tuple, list)):
        return _joined(b"u" if isinstance(value, tuple) else b"l", [_encoded(part, around) for part in value])
    if isinstance(value, (set, frozenset)):
        return _joined(b"e", sorted(_encoded(part, around) for part in value))
    if isinstance(value, dict):
        return _joined(b"d", _pairs(value.items(), around))
    if dataclasses.is_dataclass(value) and _compares_fields(type(value)):
        compared = [getattr(value, field.name) for field in dataclasses.fields(value) if field.compare]
        return _joined(b"c", [_name_of(type(value)), *(_encoded(part, around) for part in compared)])
    return _reduced(value, around)


def _is_bound(value: Any) -> bool:
    """Whether it is a method of an object. The object of a builtin function is its module."""
    if inspect.isbuiltin(value):
        return value.__self__ is not None and not inspect.ismodule(value.__self__)
    return inspect.ismethod(value) or isinstance(value, MethodWrapperType)


def _compares_fields(kind: Any) -> bool:
    return bool(kind.__dataclass_params__.eq)


def _number(value: Any) -> bytes:
    """Equal for numbers that are equal."""
    if isinstance(value, complex):
        if value.imag:
            return _joined(b"i", [_number(value.real), _number(value.imag)])
        value = value.real
    if isinstance(value, Rational):
        return b"%d/%d" % (int(value.numerator), int(value.denominator))
    exact = value if isinstance(value, Decimal) else float(value)
    try:
        return b"%d/%d" % exact.as_integer_ratio()
    except (OverflowError, ValueError):
        # An infinity, or no number.
        return repr(float(exact)).encode()


def _pairs(items: Any, around: FrozenSet[int]) -> "list[bytes]":
    return sorted(_joined(b"", [_encoded(key, around), _encoded(part, around)]) for key, part in items)


def _name_of(value: Any) -> bytes:
    name = f"{value.__module__}.{value.__qualname__}"
    if "<" in name:
        raise TypeError(f"{name} has no name that other processes know")
    return b"g" + name.encode()


def _reduced(value: Any, around: FrozenSet[int]) -> bytes:
    reduce = copyreg.dispatch_table.get(type(value))
    reduced: Any = value.__reduce_ex__(4) if reduce is None else reduce(value)
    if isinstance(reduced, str):
        return _name_of(type(value)) + reduced.encode()
    make, arguments, state, elements, items = (*reduced, None, None, None)[:5]
    return _joined(
        b"o",
        [
            _encoded(make, around),
            _encoded(arguments, around),
            _encoded(state, around),
            _joined(b"", [_encoded(part, around) for part in elements or ()]),
            _joined(b"", _pairs(items or (), around)),
        ],
    )
