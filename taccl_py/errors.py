"""Every error that a user can meet, and the exit code that each kind ends the command with.

::

    TacclError                       1  (never raised itself)
    |-- InputError                   2  a file, an option or a field is wrong
    |-- SynthesisError               3  no schedule
    |   |-- Infeasible                  the restrictions leave no path for some chunk
    |   `-- LimitReached                stopped before the first schedule was found
    |-- InvalidArtifact              4  the verifier rejects a schedule or a program
    |-- LoweringError                5  a limit of the target runtime cannot be kept
    |-- PackageMissing               6  an optional package is not installed
    |-- Unsupported                7  the verifier does not know a feature of a file, and says nothing of it
    `-- Interrupted                130  the user ended it before there was an answer

Evidence is kept in attributes; ``str(error)`` is one sentence that says what, where and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any


class TacclError(Exception):
    """Base of all errors that the command line reports without a traceback."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Cross to another process whole: exceptions call `__init__` there with ``args``, which are not what it takes."""
        return type(self).__new__, (type(self), *self.args), self.__dict__


class InputError(TacclError):
    """A file, option or field is wrong.

    Parameters
    ----------
    what
        One clause: what was found and what to do instead.
    path
        The file (or the word ``command line``) that holds the mistake.
    field
        JSON pointer, XML path or option name inside `path`.
    """

    exit_code = 2

    def __init__(self, what: str, *, path: str | None = None, field: str | None = None) -> None:
        self.what = what
        self.path = path
        self.field = field
        where = ": ".join(part for part in (path, field) if part)
        super().__init__(f"{where}: {what}" if where else what)


class SynthesisError(TacclError):
    """No schedule was found."""

    exit_code = 3


class Infeasible(SynthesisError):
    """The restrictions leave no path for some chunk.

    Parameters
    ----------
    what
        The sentence for the user.
    chunk, source, rank
        The chunk that cannot get from the rank that has it to the rank that wants it.
    restriction
        The sketch field (or ``topology``) that removed the last path.
    """

    def __init__(self, what: str, *, chunk: int, source: int, rank: int, restriction: str) -> None:
        self.chunk = chunk
        self.source = source
        self.rank = rank
        self.restriction = restriction
        super().__init__(what)


class LimitReached(SynthesisError):
    """A time limit or an interrupt came before the first schedule."""


@dataclass(frozen=True, slots=True, order=True)
class Violation:
    """One error of the verifier.

    Attributes
    ----------
    where
        The place in the file: ``gpu 3 tb 2 step 5``, ``message 17``, or empty for the whole file.
    rule
        Short stable name of the rule, for programs (``fifo-deadlock``).
    what
        Sentence for people: what was found and what would be right.
    """

    where: str
    rule: str
    what: str

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.what} [{self.rule}]"


class InvalidArtifact(TacclError):
    """The verifier rejects a schedule or a program.

    Parameters
    ----------
    name
        The file, or what was being made.
    violations
        All errors, sorted; the first one is in the message.
    """

    exit_code = 4

    def __init__(self, name: str, violations: Sequence[Violation]) -> None:
        self.violations = tuple(violations)
        more = f" (and {len(self.violations) - 1} more)" if len(self.violations) > 1 else ""
        super().__init__(f"{name}: {self.violations[0]}{more}")


class LoweringError(TacclError):
    """A limit of the target runtime cannot be kept.

    Parameters
    ----------
    what
        The sentence for the user: the limit, and the value found.
    runtime, limit
        The runtime and the name of its limit.
    remedy
        What to change about the schedule or its lowering; empty where `what` says what helps.
    """

    exit_code = 5

    def __init__(self, what: str, *, runtime: str, limit: str, remedy: str = "") -> None:
        self.what = what
        self.runtime = runtime
        self.limit = limit
        self.remedy = remedy
        super().__init__(f"{what}; {remedy}" if remedy else what)

    def of_file(self, path: str) -> LoweringError:
        """Return the error of a program that is read from a file, where only who wrote it can change what the remedy says."""
        remedy = self.remedy and f"{self.remedy} in the tool that wrote it"
        return LoweringError(f"{path}: {self.what}", runtime=self.runtime, limit=self.limit, remedy=remedy)


class PackageMissing(TacclError):
    """An optional package or program is not installed.

    Parameters
    ----------
    what
        Command, option or feature that needs it.
    remedy
        The command that installs it, or what else to do.
    """

    exit_code = 6

    def __init__(self, what: str, remedy: str) -> None:
        self.remedy = remedy
        super().__init__(f"{what}; {remedy}")


def import_package(module: str, title: str, remedy: str) -> Any:
    """Module of an optional package, imported when it is needed.

    Parameters
    ----------
    module
        Its full name.
    title
        What people call the package.
    remedy
        See `PackageMissing`.

    Raises
    ------
    PackageMissing
        If it cannot be imported.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise PackageMissing(f"{title} cannot be imported ({error})", remedy) from None


@dataclass(frozen=True, slots=True, order=True)
class UnsupportedFeature:
    """Something in a file that the verifier does not know, so that it says nothing of the file.

    Attributes
    ----------
    where
        The place in the file, or empty for the whole file.
    feature
        Short stable name, for programs.
    what
        What was found, for people.
    """

    where: str
    feature: str
    what: str

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.what} [{self.feature}]"


class Unsupported(TacclError):
    """The verifier does not know a feature of a file: it may be right or wrong.

    Parameters
    ----------
    name
        The file.
    features
        All of them, sorted; the first one is in the message.
    """

    exit_code = 7

    def __init__(self, name: str, features: Sequence[UnsupportedFeature]) -> None:
        self.features = tuple(features)
        more = f" (and {len(self.features) - 1} more)" if len(self.features) > 1 else ""
        super().__init__(f"{name}: {self.features[0]}{more}")


def require_verdict(name: str, violations: Sequence[Violation], unsupported: Sequence[UnsupportedFeature] = ()) -> None:
    """Let only go on with what the verifier calls valid.

    Parameters
    ----------
    name
        The file, or what was being made.
    violations, unsupported
        What its verdict says.

    Raises
    ------
    InvalidArtifact
        If there are errors.
    Unsupported
        If there are none, and features that are not known.
    """
    if violations:
        raise InvalidArtifact(name, violations)
    if unsupported:
        raise Unsupported(name, unsupported)


class Interrupted(TacclError):
    """The user ended it before there was an answer; whoever has another answer can go on with that."""

    exit_code = 130
