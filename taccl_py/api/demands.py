"""Demands from Python: files, mappings, counts and shardings, and the search for them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from taccl_py.api.arguments import bytes_of, machine_of, names_arguments, parsed
from taccl_py.api.policy import AUTO, DEMAND_LIMIT_S, EXCHANGE_RANKS, budget, default_seconds, scaled_seconds
from taccl_py.collective import Kind
from taccl_py.demand import DataDemand, dtype_named
from taccl_py.demand.counts import parse_skew
from taccl_py.demand.files import read_demand_value
from taccl_py.demand.formula import by_counts, dtype_of, read_rows_of
from taccl_py.demand.moe import ExpertCall
from taccl_py.demand.msccl_collective import read_demand_file
from taccl_py.demand.reshard import Resharding, Sharding, parse_shape, parse_sharding, reshard
from taccl_py.demand.variable import ExpertExchange, Variable, exchange_of, variable_of
from taccl_py.errors import InputError
from taccl_py.pipeline.demands import DemandAnswer
from taccl_py.pipeline.demands import synthesize_demand as search
from taccl_py.sketch.machine import load_machine
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.catalog import ALL_ENGINE_NAMES, DEMAND_ENGINES
from taccl_py.synthesis.demands import is_large, recognized
from taccl_py.synthesis.engine import Events
from taccl_py.topology.model import Topology


@names_arguments
def load_demand(
    what: str | Path | Mapping[str, Any],
    counts: Sequence[Any] | str | Path | None = None,
    *,
    ranks: int | None = None,
    dtype: str | None = None,
    size: int | str | None = None,
) -> DataDemand:
    """Demand of a file, of a mapping with a file's fields, or of counts.

    Parameters
    ----------
    what
        A demand file, or a collective that SCCL or msccl-tools saved as JSON; a mapping with a demand file's fields (``ranks`` and ``chunks``, and what else such a file may have); or ``alltoallv``,
        ``allgatherv``, ``reducescatterv`` or ``sendrecv``.
    counts
        Elements of a formula, nested lists, an array of integers, or a file of them: of alltoallv a row for each sender, of allgatherv and
        reducescatterv one count for each rank, of sendrecv (source, destination, elements) for each pair.
    ranks
        Number of ranks of sendrecv; of the others as many as there are counts.
    dtype
        Type of the elements of a formula, or of a collective of msccl-tools. None: bytes, of reducescatterv and such a collective float32.
    size
        Bytes of all addresses of a collective of msccl-tools together, or a text such as ``16MB``. None: 1 MB.

    Returns
    -------
    DataDemand
        Chunks with their sizes in bytes, who holds or adds and who wants them.

    Raises
    ------
    InputError
        If there is no such file or formula, or it contradicts itself.
    """
    variable = variable_of(what) if isinstance(what, str) else None
    if variable is not None:
        if size is not None:
            raise InputError(
                f"is for a collective of msccl-tools, and {what} has counts; leave it out",
                path="arguments",
                field="size",
            )
        return _by_formula(variable, counts, ranks, dtype)
    is_ours = isinstance(what, Mapping)
    for name, value in (
        ("counts", counts),
        ("ranks", ranks),
        ("dtype", dtype if is_ours else None),
        ("size", size if is_ours else None),
    ):
        if value is not None:
            raise InputError(
                f"is for {', '.join(Variable)}; a demand says it itself, leave it out", path="arguments", field=name
            )
    if isinstance(what, Mapping):
        return read_demand_value(what, "the demand")
    if not isinstance(what, str | Path):
        raise InputError(
            f"found {type(what).__name__}, a file, a mapping or a formula's name is needed",
            path="arguments", field="what",
        )  # fmt: skip
    found_bytes = None if size is None else bytes_of(size, "size")
    try:
        return read_demand_file(Path(what), found_bytes, None if dtype is None else parsed(dtype_named, dtype, "dtype"))
    except InputError as error:
        if error.path != "command line":
            raise
        raise InputError(error.what, path="arguments", field=(error.field or "").removeprefix("--")) from None


def _by_formula(
    variable: Variable, counts: Sequence[Any] | str | Path | None, ranks: int | None, dtype: str | None
) -> DataDemand:
    if counts is None:
        raise InputError(f"{variable} needs counts", path="arguments", field="counts")
    named = dtype_of(variable, dtype)
    try:
        if isinstance(counts, str | Path):
            rows = read_rows_of(variable, Path(counts))
        else:
            rows = _rows(counts.tolist() if hasattr(counts, "tolist") else list(counts))
        if variable is Variable.SENDRECV and ranks is None:
            raise InputError("sendrecv needs the number of ranks", path="arguments", field="ranks")
        found = len(rows) if variable is Variable.ALLTOALLV else len(rows[0])
        return by_counts(variable, rows, found if ranks is None else ranks, named)
    except InputError as error:
        if error.path is not None:
            raise
        raise InputError(error.what, path="arguments", field="counts") from None


def _rows(counts: list[Any]) -> list[list[int]]:
    """Counts as rows; one list is one row."""
    if not counts:
        raise InputError("found no counts; give one for each rank")
    rows = [list(row) if isinstance(row, list | tuple) else row for row in counts]
    if not any(isinstance(row, list) for row in rows):
        rows = [rows]
    for row in rows:
        if not isinstance(row, list) or not row:
            raise InputError(f"found {row!r}; rows of counts, or one row, are needed")
        wrong = next((item for item in row if isinstance(item, bool) or not hasattr(item, "__index__")), None)
        if wrong is not None:
            raise InputError(f"found {wrong!r}, a whole number is needed")
    return [[int(item) for item in row] for row in rows]


@names_arguments
def moe_demand(  # noqa: PLR0913 - keywords with defaults, as the command's options
    exchange: str,
    ranks: int,
    *,
    experts: int,
    token_bytes: int | str,
    routing: Any = None,
    tokens: int | None = None,
    topk: int | None = None,
    expert_groups: int = 1,
    topk_groups: int = 1,
    skew: str = "zipf:0",
    dtype: str | None = None,
    seed: int = 0,
) -> DataDemand:
    """Demand of an exchange of a mixture of experts, as ``taccl synth MACHINE moe-dispatch``.

    Parameters
    ----------
    exchange
        ``moe-dispatch`` or ``moe-combine``.
    ranks
        Number of ranks, on which the experts lie in order, as many on each.
    experts, token_bytes
        Number of experts, and bytes of a token or of a result, or a text such as ``14KiB``.
    routing
        Experts of each token: an array of integers with a row for each token, in order of the ranks, -1 for none; nested lists, or a file. None: drawn.
    tokens, topk, expert_groups, topk_groups, skew, seed
        Of drawn routings: tokens of each rank, experts of each token, groups of experts and to how many of them a token keeps, how popular
        experts are, and the random seed.
    dtype
        Type of the elements. None: bytes, of combine bfloat16.

    Raises
    ------
    InputError
        If an argument is missing or wrong.
    """
    named = exchange_of(exchange)
    if named is None:
        raise InputError(
            f"found {exchange!r}, use one of: {', '.join(ExpertExchange)}", path="arguments", field="exchange"
        )
    if isinstance(routing, str | Path):
        routing = Path(routing)
    elif routing is not None:
        routing = np.asarray(routing)
        if (
            routing.ndim != 2
            or not np.issubdtype(routing.dtype, np.integer)
            or routing.min() < -1
            or routing.max() >= experts
        ):
            raise InputError(
                f"needs a row of experts 0..{experts - 1} (-1 for none) for each token",
                path="arguments",
                field="routing",
            )
    call = ExpertCall(
        named, experts, bytes_of(token_bytes, "token_bytes"), routing, tokens, topk, expert_groups, topk_groups, parsed(parse_skew, skew, "skew"), dtype, seed
    )  # fmt: skip
    try:
        return call.demand(ranks)
    except InputError as error:
        if error.path is not None:
            raise
        field = (error.field or "--routing").removeprefix("--").replace("-", "_")
        raise InputError(error.what, path="arguments", field=field) from None


@names_arguments
def reshard_demand(
    shape: str | Sequence[int],
    source: str | Sharding,
    target: str | Sharding,
    *,
    dtype: str = "float32",
    ranks: int | None = None,
) -> Resharding:
    """Demand that brings a tensor from one sharding over a mesh of ranks to another, as ``taccl reshard``.

    Parameters
    ----------
    shape
        Lengths of its dimensions, numbers or a text such as ``1024x512``.
    source, target
        Ranks, mesh, and one of DTensor's placements for each axis of the mesh: ``0-15:4x4:S0,R``.
    dtype
        Type of its elements.
    ranks
        Ranks of the machine. None: as many as the meshes need.

    Returns
    -------
    Resharding
        ``demand``, and the tensor's ``boxes``, of which chunk c of the demand is box c.

    Raises
    ------
    InputError
        If the shardings do not fit the tensor, or contradict themselves.
    """
    lengths = parsed(parse_shape, shape if isinstance(shape, str) else "x".join(map(str, shape)), "shape")
    one = source if isinstance(source, Sharding) else parsed(parse_sharding, source, "source")
    other = target if isinstance(target, Sharding) else parsed(parse_sharding, target, "target")
    needed = max(2, 1 + max(*one.ranks, *other.ranks))
    try:
        return reshard(lengths, parsed(dtype_named, dtype, "dtype"), one, other, needed if ranks is None else ranks)
    except InputError as error:
        names = {"--from": "source", "--to": "target"}
        raise InputError(error.what, path="arguments", field=names.get(error.field or "", error.field)) from None


def demand_seconds(demand: DataDemand, engine: str) -> float:
    """Budget of effort ``normal`` of the search for a demand, as long as for a collective, unless one planner is asked or there are too many chunks.

    Not so an AllToAll on many ranks: what is found at once is within some percent of the bound.
    """
    is_planned = engine in DEMAND_ENGINES and engine != AUTO
    if is_planned or is_large(len(demand.chunks)):
        return DEMAND_LIMIT_S
    known = recognized(demand)
    if known is not None and known.kind is Kind.ALLTOALL and demand.num_ranks > EXCHANGE_RANKS:
        return DEMAND_LIMIT_S
    seconds = default_seconds(engine, longer=False)
    return seconds if known is None else scaled_seconds(seconds, demand.num_ranks, ranged=False)


@names_arguments
def synthesize_demand(  # noqa: PLR0913 - keywords with defaults, as the command's options
    machine: Topology | str | Path,
    demand: DataDemand | Resharding,
    *,
    engine: str = AUTO,
    effort: str | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    events: Events | None = None,
    stop: threading.Event | None = None,
) -> DemandAnswer:
    """Find and verify a schedule for a demand, as ``taccl synth MACHINE my.json``.

    Parameters
    ----------
    machine
        The machine, or what `load_machine` takes; it has as many ranks as the demand.
    demand
        What must move, of `load_demand` or `reshard_demand`.
    engine
        ``auto``; one for demands: ``balance``, ``multicast``, ``direct``, ``greedy``, ``flow``, ``trees``, or ``steps``, ``milp`` and ``cp`` for small
        ones; or one of the eight collectives, if the demand is one of those.
    effort
        ``quick``, ``normal`` or ``thorough``: an amount of work; normal takes about 20 seconds at most, with one planner 4.
    time_limit
        Seconds of the clock after which the search ends. None: there is no such limit.
    seed
        Random seed.
    events
        Told of progress.
    stop
        If it is set meanwhile, by another thread, the best schedule so far is returned.

    Returns
    -------
    DemandAnswer
        ``schedule``, ``time_us``, ``bound``, ``gap``, ``proof``, ``ended`` and ``known``, the collective that the demand is, if it is one;
        ``schedules`` are the schedule and those of other planners, of which `lower` takes the one with the fastest program.

    Raises
    ------
    InputError
        If an argument is wrong, or machine and demand have not as many ranks.
    Infeasible, LimitReached
        If some rank cannot be reached, or nothing was found in time.
    InvalidArtifact
        If the verifier reports errors, which is a mistake of this package.
    """
    if isinstance(demand, Resharding):
        demand = demand.demand
    if not isinstance(demand, DataDemand):
        raise InputError(
            f"found {type(demand).__name__}, what load_demand or reshard_demand made is needed",
            path="arguments", field="demand",
        )  # fmt: skip
    if engine not in ALL_ENGINE_NAMES:
        raise InputError(
            f"found {engine!r}, use one of: {', '.join(ALL_ENGINE_NAMES)}", path="arguments", field="engine"
        )
    limits = Limits(seed=seed, stop=stop or threading.Event())
    limits = budget(limits, demand_seconds(demand, engine), effort=effort, time_limit=time_limit)
    return search(load_machine(machine_of(machine)).topology, demand, limits, events or Events(), engine)
