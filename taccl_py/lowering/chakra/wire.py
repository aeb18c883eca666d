"""Protobuf's wire format, as far as execution traces use it: variable-length integers, and fields of bytes.

Source: the encoding page of Protocol Buffers' documentation. Wire type 0 is a varint, 2 is a length and that many bytes; a field
begins with ``number << 3 | wire type``; repeated integers are packed into one field of bytes (proto3).
"""

from __future__ import annotations

from collections.abc import Iterable

_VARINT, _BYTES = 0, 2
_NEGATIVE = 1 << 64  # negative numbers are written as their two's complement of 64 bits


def varint(value: int) -> bytes:
    """Integer in groups of seven bits, the lowest first, each with a flag that says that more follow."""
    rest, found = value % _NEGATIVE, bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


def integer_field(number: int, value: int) -> bytes:
    """Field that holds an integer or a truth value."""
    return varint(number << 3 | _VARINT) + varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    """Field that holds bytes, a text in UTF-8, or a message."""
    return varint(number << 3 | _BYTES) + varint(len(value)) + value


def packed_field(number: int, values: Iterable[int]) -> bytes:
    """Field of repeated integers; nothing if there are none."""
    packed = b"".join(map(varint, values))
    return bytes_field(number, packed) if packed else b""


def delimited(message: bytes) -> bytes:
    """Message after its length, as they follow each other in a stream."""
    return varint(len(message)) + message
