"""Question of a command: one of the eight collectives, a demand by formula, or a demand file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from taccl_py.cli.options import ParsedType
from taccl_py.collective import Kind, parse_kind
from taccl_py.demand.variable import DEFAULT_SIZE, Variable, variable_of
from taccl_py.errors import InputError
from taccl_py.spelling import did_you_mean

if TYPE_CHECKING:
    from taccl_py.demand import DataDemand

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class AskedDemand:
    """One of three: a collective, a formula, or a file."""

    kind: Kind | None = None
    variable: Variable | None = None
    file: Path | None = None


def parse_asked(text: str) -> AskedDemand:
    """Collective, formula or file that a word asks for.

    Raises
    ------
    InputError
        If it is neither a collective, nor a formula, nor a file's name.
    """
    variable = variable_of(text)
    if variable is not None:
        return AskedDemand(variable=variable)
    if text.endswith(".json"):
        return AskedDemand(file=Path(text))
    try:
        return AskedDemand(kind=parse_kind(text))
    except InputError:
        known, hint = (*Kind, *Variable), did_you_mean(text.lower(), (*Kind, *Variable))
        raise InputError(
            f"{text!r} is not a collective; {hint}use one of: {', '.join(known)}, or a demand file (.json)"
        ) from None


ASKED = ParsedType("collective", AskedDemand, parse_asked, [*Kind, *Variable])


def demand_options(command: F) -> F:
    """Options of demands by formula."""
    decorators = [
        click.option(
            "--counts",
            type=click.Path(path_type=Path),
            default=None,
            help="Elements of alltoallv (a matrix, a row for each sender), allgatherv, reducescatterv (one for each rank), or sendrecv (lines of "
            "source, destination, elements): CSV, JSON or .npy.",
        ),
        click.option(
            "--skew", default=None, help="In place of --counts: zipf:0.5, spread over receivers or ranks, of --size for each rank or in all."
        ),
        click.option("--dtype", default=None, help="Type of the elements of --counts; default: bytes, of reducescatterv float32."),
    ]  # fmt: skip
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


def take_kind(values: dict[str, Any]) -> bool:
    """Put the collective that is asked for into the values; False if it is a demand, which `make_asked_demand` makes.

    Raises
    ------
    InputError
        If options of demands are given for a collective.
    """
    asked: AskedDemand = values["collective"]
    if asked.kind is None:
        return False
    for name in ("counts", "skew", "dtype"):
        if values.pop(name) is not None:
            raise InputError(
                f"is for {', '.join(Variable)}, and {asked.kind} has equal chunks; leave it out",
                path="command line",
                field=f"--{name}",
            )
    values["collective"] = asked.kind
    return True


def refuse_others(known: Sequence[str], what: str) -> None:
    """Refuse options that were given and mean nothing for demands.

    Raises
    ------
    InputError
        If there are any.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in known and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise InputError(
                f"is for the eight collectives, and {what} is a demand; leave it out",
                path="command line",
                field=parameter.opts[0],
            )


def make_asked_demand(values: dict[str, Any], num_ranks: int) -> DataDemand:
    """The demand of a formula or a file, for a machine of so many ranks.

    Raises
    ------
    InputError
        If a file or an option is wrong.
    """
    from taccl_py.demand.files import read_demand
    from taccl_py.jsonio import read_text

    asked: AskedDemand = values["collective"]
    if asked.file is None:
        return _by_formula(values, num_ranks)
    for name in ("counts", "skew", "dtype", "size"):
        if values[name] is not None:
            raise InputError(
                f"is part of a demand file, which {asked.file} is; leave it out", path="command line", field=f"--{name}"
            )
    return read_demand(read_text(asked.file), str(asked.file))


def _by_formula(values: dict[str, Any], num_ranks: int) -> DataDemand:
    from taccl_py.demand.formula import by_counts, by_skew, dtype_of, read_rows_of
    from taccl_py.units import parse_size

    variable: Variable = values["collective"].variable
    try:
        dtype = dtype_of(variable, values["dtype"])
    except InputError as error:
        raise InputError(error.what, path="command line", field="--dtype") from None
    counts, size = values["counts"], values["size"]
    if (counts is None) == (values["skew"] is None):
        raise InputError(f"{variable} needs either --counts or --skew", path="command line", field="--counts")
    if counts is not None and size is not None:
        raise InputError("goes with --skew; the counts say the size, leave it out", path="command line", field="--size")
    try:
        if counts is not None:
            return by_counts(variable, read_rows_of(variable, counts), num_ranks, dtype)
        size = size if size is not None else parse_size(DEFAULT_SIZE)
        return by_skew(variable, values["skew"], size, num_ranks, dtype, values.get("seed", 0))
    except InputError as error:
        if error.path is not None:
            raise
        path, field = ("command line", "--skew") if counts is None else (str(counts), None)
        raise InputError(error.what, path=path, field=field) from None
