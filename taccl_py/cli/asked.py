"""Question of a command: one of the eight collectives, a demand by formula, or a demand file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from taccl_py.cli.options import SIZE, ParsedType, with_options
from taccl_py.collective import Kind, parse_kind
from taccl_py.demand.variable import DEFAULT_SIZE, ExpertExchange, Variable, exchange_of, variable_of
from taccl_py.errors import InputError
from taccl_py.spelling import did_you_mean

if TYPE_CHECKING:
    from taccl_py.demand import DataDemand

F = TypeVar("F", bound=Callable[..., Any])


# Options of all formulas, of those with counts, and of mixtures of experts.
FORMULA_OPTIONS = (
    "counts",
    "skew",
    "dtype",
    "routing",
    "experts",
    "tokens",
    "topk",
    "token_bytes",
    "expert_groups",
    "topk_groups",
)
_MOE_OPTIONS = FORMULA_OPTIONS[3:]


@dataclass(frozen=True, slots=True)
class AskedDemand:
    """One of three: a collective, a formula, or a file."""

    kind: Kind | None = None
    variable: Variable | ExpertExchange | None = None
    file: Path | None = None


def parse_asked(text: str) -> AskedDemand:
    """Collective, formula or file that a word asks for.

    Raises
    ------
    InputError
        If it is neither a collective, nor a formula, nor a file's name.
    """
    variable = variable_of(text) or exchange_of(text)
    if variable is not None:
        return AskedDemand(variable=variable)
    if text.endswith(".json"):
        return AskedDemand(file=Path(text))
    try:
        return AskedDemand(kind=parse_kind(text))
    except InputError:
        known = (*Kind, *Variable, *ExpertExchange)
        hint = did_you_mean(text.lower(), known)
        raise InputError(
            f"{text!r} is not a collective; {hint}use one of: {', '.join(known)}, or a demand file (.json)"
        ) from None


ASKED = ParsedType("collective", AskedDemand, parse_asked, [*Kind, *Variable, *ExpertExchange])


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
            "--skew", default=None, help="In place of --counts or --routing: zipf:0.5, spread over receivers or ranks, of --size for each rank or in all, "
            "in multiples of 16 bytes where the size is one, or over experts.",
        ),
        click.option("--dtype", default=None, help="Type of the elements of --counts; default: bytes, of reducescatterv float32, of moe-combine bfloat16."),
        click.option(
            "--routing",
            type=click.Path(path_type=Path),
            default=None,
            help="Experts of each token, of moe-dispatch and moe-combine: CSV, JSON or .npy with a row for each token, in order of the ranks; -1 for none.",
        ),
        click.option("--experts", type=click.IntRange(1), default=None, help="Experts, as many on each rank."),
        click.option("--tokens", type=click.IntRange(1), default=None, help="In place of --routing: tokens of each rank, drawn with --seed."),
        click.option("--topk", type=click.IntRange(1), default=None, help="Experts of a drawn token."),
        click.option("--token-bytes", type=SIZE, default=None, help="Size of a token (moe-dispatch) or of a result (moe-combine): 7168, 14KiB."),
        click.option("--expert-groups", type=click.IntRange(1), default=None, help="Groups of experts; a drawn token keeps to --topk-groups of them."),
        click.option("--topk-groups", type=click.IntRange(1), default=None, help="Groups of experts that a drawn token goes to."),
    ]  # fmt: skip
    return with_options(command, decorators)


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
    for name in FORMULA_OPTIONS:
        if values.pop(name) is not None:
            raise InputError(
                f"is for {', '.join((*Variable, *ExpertExchange))}, and {asked.kind} has equal chunks; leave it out",
                path="command line",
                field=_option(name),
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
    from taccl_py.demand.msccl_collective import read_demand_file

    asked: AskedDemand = values["collective"]
    if asked.file is None:
        return _by_formula(values, num_ranks)
    for name in FORMULA_OPTIONS:
        if name != "dtype" and values[name] is not None:
            raise InputError(
                f"is part of a demand file, which {asked.file} is; leave it out",
                path="command line",
                field=_option(name),
            )
    return read_demand_file(asked.file, values["size"], _dtype(values["dtype"]))


def _dtype(text: str | None) -> str | None:
    """Type of the elements that was asked for."""
    from taccl_py.demand import dtype_named

    try:
        return None if text is None else dtype_named(text)
    except InputError as error:
        raise InputError(error.what, path="command line", field="--dtype") from None


def _by_formula(values: dict[str, Any], num_ranks: int) -> DataDemand:
    from taccl_py.demand.formula import by_counts, by_skew, dtype_of, read_rows_of
    from taccl_py.units import parse_size

    variable: Variable | ExpertExchange = values["collective"].variable
    is_exchange = isinstance(variable, ExpertExchange)
    for name in ("counts", "size") if is_exchange else _MOE_OPTIONS:
        if values[name] is not None:
            others = ", ".join(Variable if is_exchange else ExpertExchange)
            raise InputError(f"is for {others}; leave it out", path="command line", field=_option(name))
    if isinstance(variable, ExpertExchange):
        return _of_experts(variable, values, num_ranks)
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


def _of_experts(exchange: ExpertExchange, values: dict[str, Any], num_ranks: int) -> DataDemand:
    """Dispatch or combine of a mixture of experts."""
    from taccl_py.demand.counts import parse_skew
    from taccl_py.demand.moe import ExpertCall

    path = values["routing"]
    _require_given(values, "experts", "token_bytes")
    if path is not None:
        for name in ("skew", "tokens", "topk", "expert_groups", "topk_groups"):
            if values[name] is not None:
                raise InputError("goes without --routing; leave one out", path="command line", field=_option(name))
    else:
        _require_given(values, "tokens", "topk")
    if (values["expert_groups"] is None) != (values["topk_groups"] is None):
        raise InputError("goes with --topk-groups; give both", path="command line", field="--expert-groups")
    try:
        exponent = parse_skew(values["skew"] or "zipf:0")
    except InputError as error:
        raise InputError(error.what, path="command line", field="--skew") from None
    call = ExpertCall(
        exchange, values["experts"], values["token_bytes"], path, values["tokens"], values["topk"], values["expert_groups"] or 1,
        values["topk_groups"] or 1, exponent, values["dtype"], values.get("seed", 0),
    )  # fmt: skip
    try:
        return call.demand(num_ranks)
    except InputError as error:
        if error.path is not None:
            raise
        is_option = error.field is not None or path is None
        raise InputError(error.what, path="command line" if is_option else str(path), field=error.field) from None


def _require_given(values: dict[str, Any], *names: str) -> None:
    for name in names:
        if values[name] is None:
            variable = values["collective"].variable
            or_file = " (or --routing FILE)" if name == "tokens" else ""
            raise InputError(f"{variable} needs it{or_file}", path="command line", field=_option(name))


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
