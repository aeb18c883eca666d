"""Options of commands that look into files: a schedule carries its machine; an XML file or a plan needs the machine's options."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from taccl_py.api.subject import GivenFile, Placed
from taccl_py.api.subject import load_subject as load_placed
from taccl_py.cli.options import runtime_option, with_options
from taccl_py.errors import InputError

__all__ = ["PLAN", "PROGRAM", "SCHEDULE", "GivenFile", "load_subject", "machine_options", "refuse_folder"]

F = TypeVar("F", bound=Callable[..., Any])

# Files in a folder of taccl synth.
SCHEDULE, PROGRAM, PLAN = "schedule.json", "algorithm.xml", "plan.json"
# Options about the machine, which a schedule carries itself.
_MACHINE_OPTIONS = ("topology", "nodes", "sketch", "runtime", "demand")


def machine_options(command: F) -> F:
    """Options that say on which machine an XML file or a plan runs."""
    decorators = [
        click.option("--topology", default="", help="Topology for an XML file or a plan: name, formula or file."),
        click.option("--nodes", type=click.IntRange(1), default=None, help="Number of nodes of that topology."),
        click.option("--sketch", default="", help="Sketch that completes a TACCL profile."),
        runtime_option("Runtime that an XML file is for, with its rules, and what its connections hold"),
        click.option(
            "--demand",
            type=click.Path(path_type=Path),
            default=None,
            help="Demand that a plan or an XML file is for, which it does not say; of a schedule, the one that it must be for.",
        ),
    ]
    return with_options(command, decorators)


def refuse_folder(file: Path, *names: str) -> None:
    """Refuse a folder in place of a file, and name the schedule and the programs in it.

    Parameters
    ----------
    file
        What was named.
    names
        Files of ``taccl synth`` that the command takes; all of them if none is named.

    Raises
    ------
    InputError
        If it is a folder.
    """
    if not os.path.isdir(file):
        return
    own = [file / name for name in names or (SCHEDULE, PROGRAM, PLAN)]
    found = [path for path in own if path.is_file()]
    if not found and PROGRAM in (names or (PROGRAM,)):
        found = sorted(file.glob("*.xml"))[:1]
    such = f", such as {' or '.join(map(str, found))}" if found else ""
    raise InputError(f"is a directory, a file is needed; name one{such}", path=str(file))


def load_subject(file: Path, values: dict[str, Any], *, verified: bool, needs_machine: bool = True) -> GivenFile:
    """Read and verify a file with what was given for `machine_options`; see `taccl_py.api.subject.load_subject`."""
    refuse_folder(file)
    context = click.get_current_context()
    named = tuple(
        name for name in _MACHINE_OPTIONS if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    )
    placed = Placed(**{name: values[name] for name in _MACHINE_OPTIONS}, named=named)
    return load_placed(file, placed, verified=verified, needs_machine=needs_machine)
