"""Suite files: instances as TOML, a whole matrix of them in one entry, and how much worse each metric may get.

::

    format = "taccl-suite"
    version = 1

    [defaults]                       # for all instances that do not say otherwise
    engines = ["templates"]

    [thresholds]                     # relative; what is not named keeps its default
    cost = 0.001

    [[instances]]
    topology = "ndv4"
    nodes = [1, 2]
    collectives = ["allgather", "allreduce"]
    sizes = ["64KiB", "16MiB"]
    engines = ["milp", "trees"]

    [[instances]]                    # demands: a file, or a formula with counts or skews
    topology = "ndv5"
    nodes = 4
    collectives = ["alltoallv", "my.json"]
    skews = ["zipf:0", "zipf:1"]

    [[instances]]                    # a mixture of experts: routing (a file), or tokens and topk
    topology = "ndv5"
    nodes = 8
    collectives = ["moe-dispatch", "moe-combine"]
    experts = 256
    tokens = 4096
    topk = 8
    token_bytes = "14KiB"
"""

from __future__ import annotations

import itertools
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from taccl_py.campaign.case import Case
from taccl_py.campaign.demand_case import AnyCase, DemandCase
from taccl_py.campaign.metrics import Metric
from taccl_py.collective import ROOTED, Kind, parse_kind
from taccl_py.demand.counts import parse_skew
from taccl_py.demand.formula import dtype_of, read_rows_of
from taccl_py.demand.moe import ExpertCall
from taccl_py.demand.msccl_collective import read_demand_file
from taccl_py.demand.variable import DEFAULT_SIZE, ExpertExchange, Variable, exchange_of, variable_of
from taccl_py.errors import InputError
from taccl_py.jsonio import Fields, read_text
from taccl_py.pipeline.resolve import AUTO_SKETCH
from taccl_py.runtimes import RUNTIMES
from taccl_py.sketch.catalog import load_sketch
from taccl_py.sketch.machine import load_machine
from taccl_py.synthesis.catalog import ENGINE_NAMES
from taccl_py.units import parse_ranks, parse_size

FORMAT, VERSION = "taccl-suite", 1
# Solvers whose search ends by work and not by the clock.
_SOLVERS = ("auto", "cp-sat")
_MOST_CASES = 100_000
# Fields of an entry that say nothing of a demand.
_OF_COLLECTIVES = ("engines", "chunks", "root", "runtime", "sketch", "solver")


@dataclass(frozen=True)
class Suite:
    """Cases with unique names, and by how much each metric may get worse, as a part of what it was."""

    path: str
    cases: tuple[AnyCase, ...]
    thresholds: dict[Metric, float]


def read_suite(path: Path) -> Suite:
    """Read a suite file; files that it names are looked for beside it.

    Raises
    ------
    InputError
        If the file or one that it names is wrong; the error names the field.
    """
    text = read_text(path)
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"is not TOML: {error}; correct it", path=str(path)) from None
    except RecursionError:
        raise InputError("is nested too deeply; write it with fewer levels", path=str(path)) from None
    except ValueError as error:  # a number with thousands of digits
        raise InputError(f"holds a number that cannot be read ({error})", path=str(path)) from None
    fields = Fields(value, str(path))
    fields.header(FORMAT, VERSION)
    defaults = value.get("defaults", {})
    if fields.has("defaults"):
        fields.object("defaults")  # refuses what is no table
    thresholds = _read_thresholds(fields.object("thresholds")) if fields.has("thresholds") else {}
    cases: list[AnyCase] = []
    for number, item in enumerate(fields.items("instances")):
        if not isinstance(item, dict):
            fields.fail(f"instances/{number}", "a table [[instances]] is needed")
        entry = Fields({**defaults, **item}, str(path), f"/instances/{number}")
        if _asks_for_demands(entry):
            cases += _read_demand_cases(entry, path.parent, {*item})
        else:
            cases += _read_cases(entry, path.parent)
        if len(cases) > _MOST_CASES:
            fields.fail(f"instances/{number}", f"makes more than {_MOST_CASES} instances; name fewer")
    fields.finish()
    if not cases:
        fields.fail("instances", "is empty; add an instance")
    name, count = Counter(case.name for case in cases).most_common(1)[0]
    if count > 1:
        fields.fail("instances", f"name {name} {count} times; remove one or give it a name")
    return Suite(str(path), tuple(cases), {metric: metric.threshold for metric in Metric} | thresholds)


def _read_thresholds(fields: Fields) -> dict[Metric, float]:
    found = {metric: fields.number(metric.value) for metric in Metric if fields.has(metric.value)}
    fields.finish()
    return found


def _asks_for_demands(fields: Fields) -> bool:
    """True if an entry is for demands.

    Raises
    ------
    InputError
        If it is for collectives as well.
    """
    words = _texts(fields, "collectives")
    are_demands = {
        word.endswith(".json") or variable_of(word) is not None or exchange_of(word) is not None for word in words
    }
    if len(are_demands) > 1:
        fields.fail(
            "collectives",
            "names collectives and demands, which have other fields; write an entry [[instances]] for each",
        )
    return True in are_demands


def _read_demand_cases(fields: Fields, folder: Path, own: set[str]) -> Iterator[DemandCase]:
    """All combinations of what an entry of demands lists; `own` are its fields without the defaults."""
    for name in _OF_COLLECTIVES:
        if name in own:
            fields.fail(name, "is for the eight collectives, and the entry has demands; leave it out")
        if fields.has(name):
            fields.raw(name)
    topology = fields.text("topology")
    nodes = [None] if not fields.has("nodes") else _integers(fields, "nodes")
    ranks = fields.text("ranks") if fields.has("ranks") else ""
    group = fields.build("ranks", lambda: parse_ranks(ranks)) if ranks else None
    seed, label = fields.integer("seed", 0, least=0), fields.text("name", "")
    words = _texts(fields, "collectives")
    exchanges = [exchange for word in words if (exchange := exchange_of(word)) is not None]
    if exchanges:
        if len(exchanges) < len(words):
            fields.fail(
                "collectives", "names exchanges of experts and other demands; write an entry [[instances]] for each"
            )
        calls = list(_expert_calls(fields, folder, exchanges, seed))
        fields.finish()
        _require_machines(fields, _beside(topology, folder), "", nodes)
        for (kept, call), node in itertools.product(calls, nodes):
            parts = [label or _stem(topology), f"x{node}" if node else "", call.exchange, kept]
            parts += [f"ranks{ranks}" if ranks else ""]
            yield DemandCase(
                name=" ".join(part for part in parts if part), topology=_beside(topology, folder), nodes=node, ranks=group,
                seed=seed, experts=call,
            )  # fmt: skip
        return
    spreads = list(_spreads(fields, folder, words, seed))
    fields.finish()
    _require_machines(fields, _beside(topology, folder), "", nodes)
    for word, node in itertools.product(words, nodes):
        variable = variable_of(word)
        if variable is None:
            fields.build("collectives", partial(read_demand_file, folder / word))
        for spread in spreads if variable is not None else [_Spread()]:
            parts = [label or _stem(topology), f"x{node}" if node else "", variable or _stem(word), spread.name]
            parts += [f"ranks{ranks}" if ranks else ""]
            yield DemandCase(
                name=" ".join(part for part in parts if part), topology=_beside(topology, folder), variable=variable,
                file="" if variable is not None else str(folder / word), counts=spread.counts, skew=spread.skew,
                dtype=spread.dtype, nodes=node, ranks=group, size_bytes=spread.size_bytes, seed=seed,
            )  # fmt: skip


def _expert_calls(
    fields: Fields, folder: Path, exchanges: Sequence[ExpertExchange], seed: int
) -> Iterator[tuple[str, ExpertCall]]:
    """Exchanges of experts, each with what tells it from others of its entry."""
    numbers = {
        name: fields.integer(name, least=1)
        for name in ("tokens", "topk", "expert_groups", "topk_groups")
        if fields.has(name)
    }
    experts, size = fields.integer("experts", least=1), fields.text("token_bytes")
    token_bytes = fields.build("token_bytes", partial(parse_size, size))
    routing = folder / fields.text("routing") if fields.has("routing") else None
    dtype = fields.text("dtype") if fields.has("dtype") else None
    skews = _texts(fields, "skews") if fields.has("skews") else [""]
    for exchange, skew in itertools.product(exchanges, skews):
        exponent = fields.build("skews", partial(parse_skew, skew)) if skew else 0.0
        name = " ".join(part for part in (skew, size, f"seed{seed}" if seed else "") if part)
        yield (
            name,
            ExpertCall(exchange, experts, token_bytes, routing, exponent=exponent, dtype=dtype, seed=seed, **numbers),
        )


@dataclass(frozen=True, slots=True)
class _Spread:
    """Source of the counts of a formula: a file, or drawn; and what that is called."""

    name: str = ""
    counts: str = ""
    skew: str = ""
    dtype: str | None = None
    size_bytes: int | None = None


def _spreads(fields: Fields, folder: Path, words: Sequence[str], seed: int) -> Iterator[_Spread]:
    """Counts, or combinations of skews and sizes."""
    formulas = [variable for word in words if (variable := variable_of(word)) is not None]
    given = [name for name in ("counts", "skews", "sizes", "dtype") if fields.has(name)]
    if not formulas:
        if given:
            fields.fail(given[0], f"is for {', '.join(Variable)}, and a demand file says it itself; leave it out")
        return
    if fields.has("counts") == fields.has("skews"):
        fields.fail("collectives", f"found {formulas[0]}, which needs either counts (a file) or skews such as zipf:0.5")
    dtype = fields.text("dtype") if fields.has("dtype") else None
    for variable in formulas:
        fields.build("dtype", partial(dtype_of, variable, dtype))
    if fields.has("counts"):
        if fields.has("sizes"):
            fields.fail("sizes", "goes with skews; the counts say the size, leave it out")
        counts = fields.text("counts")
        for variable in formulas:
            read_rows_of(variable, folder / counts)
        yield _Spread(Path(counts).stem, counts=str(folder / counts), dtype=dtype)
        return
    if Variable.SENDRECV in formulas:
        fields.fail("skews", "found sendrecv, which has none; give its pairs as counts")
    skews = _texts(fields, "skews")
    for skew in skews:
        fields.build("skews", partial(parse_skew, skew))
    sizes = _texts(fields, "sizes") if fields.has("sizes") else [DEFAULT_SIZE]
    for skew, size in itertools.product(skews, sizes):
        name = f"{skew} {size} seed{seed}" if seed else f"{skew} {size}"
        yield _Spread(name, skew=skew, dtype=dtype, size_bytes=fields.build("sizes", partial(parse_size, size)))


def _read_cases(fields: Fields, folder: Path) -> Iterator[Case]:
    """All combinations of what an entry lists."""
    topology, sketch = fields.text("topology"), fields.text("sketch", "")
    if sketch == AUTO_SKETCH:
        fields.fail("sketch", "found 'auto', whose search ends by the clock; name a sketch")
    kinds = [fields.build("collectives", partial(parse_kind, text)) for text in _texts(fields, "collectives")]
    sizes: list[tuple[str, int | None]] = [("", None)]
    if fields.has("sizes"):
        sizes = [(text, fields.build("sizes", partial(parse_size, text))) for text in _texts(fields, "sizes")]
    nodes = [None] if not fields.has("nodes") else _integers(fields, "nodes")
    chunks = [None] if not fields.has("chunks") else _integers(fields, "chunks")
    engines = _texts(fields, "engines")
    for engine in engines:
        if engine not in ENGINE_NAMES:
            fields.fail("engines", f"found {engine!r}, use some of: {', '.join(ENGINE_NAMES)}")
    ranks = fields.text("ranks") if fields.has("ranks") else ""
    root, seed = fields.integer("root", 0, least=0), fields.integer("seed", 0, least=0)
    _refuse_root_of_none(fields, root, kinds)
    solver, runtime = fields.choice("solver", _SOLVERS, "auto"), fields.choice("runtime", tuple(RUNTIMES), "executor")
    label = fields.text("name", "")
    group = fields.build("ranks", lambda: parse_ranks(ranks)) if ranks else None
    fields.finish()
    _require_machines(fields, _beside(topology, folder), _beside(sketch, folder), nodes)
    for kind, node, (size, size_bytes), chunk, engine in itertools.product(kinds, nodes, sizes, chunks, engines):
        parts = [label or _stem(topology), f"x{node}" if node else "", kind, size, "" if label else _stem(sketch)]
        parts += [f"c{chunk}" if chunk else "", f"root{root}" if root else "", f"ranks{ranks}" if ranks else ""]
        parts += ["" if runtime == "executor" else runtime, f"seed{seed}" if seed else "", engine]
        yield Case(
            name=" ".join(part for part in parts if part),
            topology=_beside(topology, folder), kind=kind, engine=engine, solver=solver, sketch=_beside(sketch, folder),
            runtime=runtime, nodes=node, size_bytes=size_bytes, chunks_per_rank=chunk, ranks=group, root=root, seed=seed,
        )  # fmt: skip


def _refuse_root_of_none(fields: Fields, root: int, kinds: Sequence[Kind]) -> None:
    for kind in kinds:
        if root and kind not in ROOTED:
            fields.fail(
                "root", f"found {root}, and {kind} has no root; leave it out, or give {kind} an entry of its own"
            )


def _require_machines(fields: Fields, topology: str, sketch: str, nodes: Sequence[int | None]) -> None:
    """Refuse what every instance of the entry would stumble over; what is wrong in a file is said of that file."""
    if sketch:
        fields.build("sketch", partial(load_sketch, sketch, topology))
    for node in nodes:
        fields.build("topology", partial(load_machine, topology, sketch, node))


def _texts(fields: Fields, key: str) -> list[str]:
    """A text or a list of them."""
    value: Any = fields.raw(key)
    found = value if isinstance(value, list) else [value]
    if not found or not all(isinstance(text, str) and text for text in found):
        fields.fail(key, "a text or a list of texts is needed")
    return [str(text) for text in found]


def _integers(fields: Fields, key: str) -> list[int | None]:
    """A whole number or a list of them, at least 1."""
    if isinstance(fields.raw(key), list):
        return [*fields.integers(key, least=1)]
    return [fields.integer(key, least=1)]


def _beside(name: str, folder: Path) -> str:
    return str(folder / name) if name.endswith(".json") else name


def _stem(name: str) -> str:
    return Path(name).stem if name.endswith(".json") else name
