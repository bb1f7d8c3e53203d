"""XXH3-64 with a seed, for keys: the hash of which the digest of a table is the sum.

The algorithm is that of xxHash 0.8 (Yann Collet). If the package ``xxhash`` is there, its
compiled function is used.

>>> hex(xxh3_64(b"", 0))
'0x2d06800538d394c2'
"""

from __future__ import annotations

from struct import Struct
from typing import Callable, List, Tuple

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f74324"
    "8ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b"
    "4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d"
    "47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_MASK = (1 << 64) - 1
_PRIME_1 = 0x9E3779B185EBCA87
_PRIME_2 = 0xC2B2AE3D27D4EB4F
_PRIME_3 = 0x165667B19E3779F9
_PRIME_4 = 0x85EBCA77C2B2AE63
_PRIME_5 = 0x27D4EB2F165667C5
_PRIMES_32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
_PRIME_MX_1 = 0x165667919E3779F9
_PRIME_MX_2 = 0x9FB21C651E98DF25


def _secret(at: int) -> int:
    return int.from_bytes(_SECRET[at : at + 8], "little")


_FLIP_0 = _secret(56) ^ _secret(64)
_FLIP_1 = int.from_bytes(_SECRET[:4], "little") ^ int.from_bytes(_SECRET[4:8], "little")
_FLIP_4 = _secret(8) ^ _secret(16)
_FLIP_9 = _secret(24) ^ _secret(32)
_FLIP_9_LAST = _secret(40) ^ _secret(48)
# Parts of 16 bytes of the secret: the first eight, those that begin 3 bytes later, and the last one of middle sizes.
_MIX = [(_secret(at), _secret(at + 8)) for at in range(0, 128, 16)]
_MIX_LATER = [(_secret(at), _secret(at + 8)) for at in range(3, 115, 16)]
_MIX_LAST = (_secret(119), _secret(127))
_EIGHT = Struct("<8Q")
# Bytes of a stripe, and of the stripes between two scrambles.
_STRIPE, _BLOCK = 64, 1024


def _avalanche_64(mixed: int) -> int:
    mixed ^= mixed >> 33
    mixed = mixed * _PRIME_2 & _MASK
    mixed ^= mixed >> 29
    mixed = mixed * _PRIME_3 & _MASK
    return mixed ^ (mixed >> 32)


def _fold(product: int) -> int:
    return (product & _MASK) ^ (product >> 64)


def _mix_16(key: bytes, at: int, part: Tuple[int, int], seed: int) -> int:
    first, second = part
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


def _avalanche(mixed: int) -> int:
    mixed &= _MASK
    mixed ^= mixed >> 37
    mixed = mixed * _PRIME_MX_1 & _MASK
    return mixed ^ (mixed >> 32)


def _middle(key: bytes, seed: int) -> int:
    """17 to 240 bytes."""
    size = len(key)
    mixed = size * _PRIME_1
    if size <= 128:
        for pair in range((size - 1) // 32 + 1):
            mixed += _mix_16(key, 16 * pair, _MIX[2 * pair], seed)
            mixed += _mix_16(key, size - 16 * (pair + 1), _MIX[2 * pair + 1], seed)
        return _avalanche(mixed)
    mixed += sum(_mix_16(key, 16 * part, _MIX[part], seed) for part in range(8))
    mixed = _avalanche(mixed)
    mixed += sum(_mix_16(key, 16 * part, _MIX_LATER[part - 8], seed) for part in range(8, size // 16))
    return _avalanche(mixed + _mix_16(key, size - 16, _MIX_LAST, seed))


def _seeded_secret(seed: int) -> bytes:
    words = (_secret(at) + (seed if at % 16 == 0 else -seed) & _MASK for at in range(0, len(_SECRET), 8))
    return b"".join(word.to_bytes(8, "little") for word in words)


def _add_stripe(sums: List[int], key: bytes, at: int, secret: bytes, secret_at: int) -> None:
    words = _EIGHT.unpack_from(key, at)
    secrets = _EIGHT.unpack_from(secret, secret_at)
    for lane in range(8):
        mixed = words[lane] ^ secrets[lane]
        sums[lane ^ 1] += words[lane]
        sums[lane] = sums[lane] + (mixed & 0xFFFFFFFF) * (mixed >> 32) & _MASK


def _long(key: bytes, seed: int) -> int:
    """More than 240 bytes."""
    size, secret = len(key), _seeded_secret(seed)
    first, second, third = _PRIMES_32
    sums = [third, _PRIME_1, _PRIME_2, _PRIME_3, _PRIME_4, second, _PRIME_5, first]
    for at in range(0, size - 1 - (size - 1) % _STRIPE, _STRIPE):
        _add_stripe(sums, key, at, secret, at % _BLOCK // 8)
        if at % _BLOCK == _BLOCK - _STRIPE:
            last = _EIGHT.unpack_from(secret, 128)
            sums = [(total & _MASK ^ (total & _MASK) >> 47 ^ word) * first & _MASK for total, word in zip(sums, last)]
    _add_stripe(sums, key, size - _STRIPE, secret, 121)
    mixed = size * _PRIME_1
    for lane in range(0, 8, 2):
        low, high = (int.from_bytes(secret[at : at + 8], "little") for at in (11 + 8 * lane, 19 + 8 * lane))
        mixed += _fold(((sums[lane] & _MASK) ^ low) * ((sums[lane + 1] & _MASK) ^ high))
    return _avalanche(mixed)


def pure(key: bytes, seed: int) -> int:
    """The hash of a key."""
    size = len(key)
    if size <= 8:
        return _short(key, seed)
    if size > 240:
        return _long(key, seed)
    if size > 16:
        return _middle(key, seed)
    first, last = key[:8], key[-8:]
    low = int.from_bytes(first, "little") ^ ((_FLIP_9 + seed) & _MASK)
    high = int.from_bytes(last, "little") ^ ((_FLIP_9_LAST - seed) & _MASK)
    swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
    return _avalanche(size + swapped + high + _fold(low * high))


xxh3_64: Callable[[bytes, int], int] = pure
"""The hash of a key, with a seed."""

try:
    from xxhash import xxh3_64_intdigest as xxh3_64  # noqa: F811
except ImportError:
    pass
