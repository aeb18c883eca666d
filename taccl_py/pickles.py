"""Quick pickles of the small objects that are sent between processes by the hundred thousand."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

_Class = TypeVar("_Class", bound=type)


def pickled_by_fields(cls: _Class) -> _Class:
    """Class decorator for dataclasses of two fields or more: a pickle is a call of the class with its fields.

    That of Python itself looks up the fields of the class for each object that has slots, which takes several times as long.
    """
    values = attrgetter(*(field.name for field in fields(cls)))

    def reduced(self: Any) -> tuple[Any, ...]:
        return cls, values(self)

    cls.__reduce__ = reduced  # type: ignore[method-assign, assignment]
    return cls
