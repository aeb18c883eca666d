"""Completion of names in shells: machines, sketches, solvers and runtime profiles; click completes commands, options and choices.

Which names a parameter takes follows from its own name, the same in all commands, so that a new command needs nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem


def _machines() -> Iterable[str]:
    from taccl_py.topology.catalog import machine_names

    return machine_names()


def _sketches() -> Iterable[str]:
    from taccl_py.sketch.catalog import sketch_names

    return sketch_names()


def _solvers() -> Iterable[str]:
    from taccl_py.solvers.linear import LINEAR_SOLVERS

    return ("auto", "cp-sat", *LINEAR_SOLVERS)


def _profiles() -> Iterable[str]:
    from taccl_py.profiles.catalog import AUTO, profile_names

    return (AUTO, *profile_names())


_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "topology": _machines, "before": _machines, "after": _machines, "emulate": _machines, "sketch": _sketches,
    "solver": _solvers, "runtime_profile": _profiles, "profile": _profiles,
}  # fmt: skip
# Commands whose parameter is only called a name.
_OF_GROUPS = {"topo": _machines, "sketch": _sketches, "runtime": _profiles}


class _Named(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A text that is a name or a file; shells complete both."""

    name = "text"

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self._names = names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Take any text, as without completion."""
        return click.STRING.convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """Return the names that go on from what is there, or else let the shell complete files."""
        found = [CompletionItem(name) for name in self._names() if name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]


def with_names(command: click.Command, group: str = "") -> click.Command:
    """Return the command, and with it those of a group, whose parameters complete names."""
    for parameter in command.params:
        names = _NAMES.get(parameter.name or "") or (_OF_GROUPS.get(group) if parameter.name == "name" else None)
        if (
            names is not None
            and parameter.type is click.STRING
            and isinstance(parameter, click.Argument | click.Option)
        ):
            parameter.type = _Named(names)
    if isinstance(command, click.Group):
        for one in command.commands.values():
            with_names(one, command.name or "")
    return command


def matching(names: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    """Return names that go on from what is there, with their help."""
    return [CompletionItem(name, help=text) for name, text in names if name.startswith(incomplete)]
