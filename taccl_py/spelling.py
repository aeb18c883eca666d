"""Names that are near to a name that nobody knows: the question "did you mean ...?" of every refusal."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 3
# Parts of their characters that near names share, and at least those that are one name with a mistake.
_NEAR, MISSPELT = 0.6, 0.8


def near_names(word: str, known: Iterable[str], least: float = _NEAR) -> tuple[str, ...]:
    """Return the known names nearest to a word, the nearest first, that share at least this part of it; case and hyphens do not count."""
    import difflib  # which only refusals need

    by_key: dict[str, str] = {}
    for name in known:
        by_key.setdefault(_key(name), name)
    return tuple(by_key[key] for key in difflib.get_close_matches(_key(word), list(by_key), _MOST, least))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the question to put before a refusal's remedy, with a blank after it; empty where no known name is near.

    ``f"{word!r} is not a machine; {did_you_mean(word, machines)}'taccl topo list' shows them"``
    """
    return question(near_names(word, known))


def question(names: Iterable[str]) -> str:
    """Return "did you mean a, b or c? "; empty without names."""
    *others, last = [*names] or [""]
    if not last:
        return ""
    return f"did you mean {', '.join(others)}{' or ' if others else ''}{last}? "


def _key(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
