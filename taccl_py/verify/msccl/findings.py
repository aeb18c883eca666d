"""Findings of the verifier: errors and remarks, gathered in any order and handed out sorted and without repetition."""

from __future__ import annotations

from taccl_py.errors import UnsupportedFeature, Violation

MAX_NOTES = 60
_SHOWN_TEXT = 48


class Findings:
    """Errors and remarks about one file.

    Attributes
    ----------
    broken
        Whether some error makes it pointless to execute the file.
    """

    def __init__(self) -> None:
        self.broken = False
        self._violations: set[Violation] = set()
        self._notes: set[str] = set()
        self._unsupported: set[UnsupportedFeature] = set()

    def violation(self, where: str, rule: str, what: str, *, fatal: bool = False) -> None:
        """Report one place; `fatal` says that the file cannot be executed as it is."""
        self._violations.add(Violation(where, rule, what))
        self.broken = self.broken or fatal

    def note(self, text: str) -> None:
        """Remark on something harmless."""
        self._notes.add(text)

    def unsupported(self, feature: str, what: str) -> None:
        """Say of a feature that nothing is known here of what it does, so that the file cannot be executed."""
        self._unsupported.add(UnsupportedFeature("", feature, what))
        self.broken = True

    def features(self) -> tuple[UnsupportedFeature, ...]:
        """All features that are not known, in order."""
        return tuple(sorted(self._unsupported))

    def violations(self) -> tuple[Violation, ...]:
        """All errors in order."""
        return tuple(sorted(self._violations))

    def notes(self) -> tuple[str, ...]:
        """All remarks in order, at most `MAX_NOTES` and a last one that counts the others."""
        notes = sorted(self._notes)
        more = (f"and {len(notes) - MAX_NOTES} more remarks",) if len(notes) > MAX_NOTES else ()
        return (*notes[:MAX_NOTES], *more)


def place(gpu: int, threadblock: int | None = None, step: int | None = None) -> str:
    """Name of a place in the file: ``gpu 3 tb 2 step 5``."""
    where = f"gpu {gpu}"
    if threadblock is not None:
        where += f" tb {threadblock}"
    if step is not None:
        where += f" step {step}"
    return where


def quoted(text: str) -> str:
    """Text from the file in quotes, printable and not too long."""
    return repr(text) if len(text) <= _SHOWN_TEXT else f"{text[:_SHOWN_TEXT]!r}..."


def shown(text: str) -> str:
    """Text from the file without quotes, printable and not too long."""
    return repr(text[:_SHOWN_TEXT])[1:-1] + ("..." if len(text) > _SHOWN_TEXT else "")


def listing(numbers: list[int]) -> str:
    """Short text of a sorted list of numbers: ``0, 1, 2 and 5 more``."""
    shown = ", ".join(map(str, numbers[:6]))
    return shown if len(numbers) <= 6 else f"{shown} and {len(numbers) - 6} more"
