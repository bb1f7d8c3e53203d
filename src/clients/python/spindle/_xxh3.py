"""XXH3-64 with a seed, for keys: the hash of which the digest of a table is the sum.

The algorithm is that of xxHash 0.8 (Yann Collet) for inputs of up to 64 bytes. If the package ``xxhash`` is there, its
compiled function is used.

>>> hex(xxh3_64(b"", 0))
'0x2d06800538d394c2'
"""

from __future__ import annotations

from typing import Callable

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f7432"
    "48ee03590e6813a264c3c2852bb91c300cb"
)
_MASK = (1 << 64) - 1
_PRIME_1 = 0x9E3779B185EBCA87
_PRIME_2 = 0xC2B2AE3D27D4EB4F
_PRIME_3 = 0x165667B19E3779F9
_PRIME_MX_1 = 0x165667919E3779F9
_PRIME_MX_2 = 0x9FB21C651E98DF25


def _secret(at: int) -> int:
    return int.from_bytes(_SECRET[at : at + 8], "little")


_FLIP_0 = _secret(56) ^ _secret(64)
_FLIP_1 = int.from_bytes(_SECRET[:4], "little") ^ int.from_bytes(_SECRET[4:8], "little")
_FLIP_4 = _secret(8) ^ _secret(16)
_FLIP_9 = _secret(24) ^ _secret(32)
_FLIP_9_LAST = _secret(40) ^ _secret(48)
_MIX = [(_secret(at), _secret(at + 8)) for at in (0, 16, 32, 48)]


def _avalanche_64(mixed: int) -> int:
    mixed ^= mixed >> 33
    mixed = mixed * _PRIME_2 & _MASK
    mixed ^= mixed >> 29
    mixed = mixed * _PRIME_3 & _MASK
    return mixed ^ (mixed >> 32)


def _fold(product: int) -> int:
    return (product & _MASK) ^ (product >> 64)


def _mix_16(key: bytes, at: int, part: int, seed: int) -> int:
    first, second = _MIX[part]
    low = int.from_bytes(key[at : at + 8], "little") ^ ((first + seed) & _MASK)
    high = int.from_bytes(key[at + 8 : at + 16], "little") ^ ((second - seed) & _MASK)
    return _fold(low * high)


def _short(key: bytes, seed: int) -> int:
    """Up to 8 bytes."""
    size = len(key)
    if size >= 4:
        seed ^= int.from_bytes((seed & 0xFFFFFFFF).to_bytes(4, "little"), "big") << 32
        flip = (_FLIP_4 - seed) & _MASK
        mixed = (int.from_bytes(key[-4:], "little") | int.from_bytes(key[:4], "little") << 32) ^ flip
        mixed ^= ((mixed << 49 | mixed >> 15) ^ (mixed << 24 | mixed >> 40)) & _MASK
        mixed = mixed * _PRIME_MX_2 & _MASK
        mixed ^= (mixed >> 35) + size
        mixed = mixed * _PRIME_MX_2 & _MASK
        return mixed ^ (mixed >> 28)
    if size:
        combined = key[0] << 16 | key[size >> 1] << 24 | key[-1] | size << 8
        return _avalanche_64(combined ^ ((_FLIP_1 + seed) & _MASK))
    return _avalanche_64(seed ^ _FLIP_0)


def pure(key: bytes, seed: int) -> int:
    """The hash of a key of up to 64 bytes."""
    size = len(key)
    if size <= 8:
        return _short(key, seed)
    if size <= 16:
        first, last = key[:8], key[-8:]
        low = int.from_bytes(first, "little") ^ ((_FLIP_9 + seed) & _MASK)
        high = int.from_bytes(last, "little") ^ ((_FLIP_9_LAST - seed) & _MASK)
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        mixed = size + swapped + high + _fold(low * high)
    else:
        if size > 64:
            raise ValueError("a key has 64 bytes at most")
        mixed = size * _PRIME_1 + _mix_16(key, 0, 0, seed) + _mix_16(key, size - 16, 1, seed)
        if size > 32:
            mixed += _mix_16(key, 16, 2, seed) + _mix_16(key, size - 32, 3, seed)
    mixed &= _MASK
    mixed ^= mixed >> 37
    mixed = mixed * _PRIME_MX_1 & _MASK
    return mixed ^ (mixed >> 32)


xxh3_64: Callable[[bytes, int], int] = pure
"""The hash of a key of up to 64 bytes, with a seed."""

try:
    from xxhash import xxh3_64_intdigest as xxh3_64  # noqa: F811
except ImportError:
    pass
