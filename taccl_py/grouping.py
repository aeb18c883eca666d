"""Values by their keys, or by the numbers of what they belong to."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


def grouped(pairs: Iterable[tuple[_Key, _Value]]) -> dict[_Key, list[_Value]]:
    """Values of pairs by their keys; keys, and the values of each, are in the order in which they come."""
    found: dict[_Key, list[_Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def by_number(count: int, pairs: Iterable[tuple[int, _Value]]) -> list[list[_Value]]:
    """Values of pairs of a number below a count and a value, [number]; the values of each are in the order in which they come."""
    found: list[list[_Value]] = [[] for _ in range(count)]
    for number, value in pairs:
        found[number].append(value)
    return found
