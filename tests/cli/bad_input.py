"""Tables of broken inputs: what is changed in a correct one, and what the sentence about it must say."""

from dataclasses import dataclass

import pytest

from tests.cli.inputs import MISSING, changed


@dataclass(frozen=True)
class Bad:
    """A correct value with one field changed, the field that the sentence names, and words that it holds."""

    name: str
    place: str
    new: object
    field: str
    words: tuple[str, ...] = ()
    code: int = 2

    def of(self, value):
        return changed(value, self.place, self.new)


def bad(name, place, new, *words, field=None, code=2):
    """A case whose sentence names the changed field itself if no other one is given."""
    return Bad(name, place, new, place if field is None else field, words, code)


def gone(place, *words, name=None, field=None):
    """A case in which a needed field is missing."""
    return bad(name or f"no {place}", place, MISSING, *(words or ("is missing", "add it")), field=field)


def table(*cases):
    """Parameters of a test."""
    return [pytest.param(case, id=case.name) for case in cases]
