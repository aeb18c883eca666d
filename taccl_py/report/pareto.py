"""Tables and JSON record of a Pareto front; the same facts in both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taccl_py.collective import Kind
from taccl_py.report.tables import ON_WIRES, plain_table
from taccl_py.simulate.cost_curve import cost_curve
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.pareto import Front, Point
from taccl_py.units import SizeRange, format_count, format_size, format_time

if TYPE_CHECKING:
    from rich.table import Table

_SIZE_FACTOR = 4
# Collectives that the algorithms of a front consist of, where another algorithm may be better than all of them.
_HALVES = {Kind.ALLREDUCE: (Kind.REDUCESCATTER, Kind.ALLGATHER)}


def front_record(demand: Demand, front: Front, sizes: SizeRange) -> dict[str, Any]:
    """Return the JSON object of a front; keys are stable. Times are microseconds, sizes bytes.

    ``fewest_steps`` and ``least_rounds_per_chunk`` hold for every algorithm, and a point is optimal that reaches them. What is
    ``proved`` of a point holds for algorithms that are ``halves``, one after the other, if there are some.

    Parameters
    ----------
    demand
        Demand of the search.
    front
        The answer.
    sizes
        Range to compare the points' schedules at.
    """
    result: dict[str, Any] = {
        "collective": str(demand.kind),
        "topology": demand.topology.name,
        "num_ranks": demand.topology.num_ranks,
        "root": demand.root,
        "halves": [str(half) for half in _HALVES.get(demand.kind, ())],
        "fewest_steps": front.fewest_steps,
        "least_rounds_per_chunk": str(front.least_rounds_per_chunk),
        "round_us_per_mb": front.round_us_per_mb,
        "points": [_point(point, front) for point in front.points],
        "sizes": [],
    }
    curves = [cost_curve(point.schedule, sizes.low_bytes, sizes.high_bytes) for point in front.points]
    for size in sizes.stepped(_SIZE_FACTOR):
        times = [curve.time_us(size) for curve in curves]
        result["sizes"].append({"size_bytes": size, "times_us": times, "winner": times.index(min(times))})
    return result


def _point(point: Point, front: Front) -> dict[str, Any]:
    shape = point.shape
    return {
        "chunks": shape.chunks,
        "steps": shape.steps,
        "rounds": shape.rounds,
        "rounds_per_chunk": str(shape.rounds_per_chunk),
        "proved": point.proved,
        "open": [[s.chunks, s.steps, s.rounds] for s in point.open_shapes],
        "latency_optimal": shape.steps == front.fewest_steps,
        "bandwidth_optimal": shape.rounds_per_chunk == front.least_rounds_per_chunk,
    }


def front_tables(result: dict[str, Any]) -> list[Table]:
    """Tables of a record: the points, and the time of each at some sizes."""
    what = f"{result['collective']} on {result['topology']}, {result['num_ranks']} ranks"
    what += f": at least {format_count(result['fewest_steps'], 'step')}"
    what += f", at least {result['least_rounds_per_chunk']} rounds per chunk"
    if result["halves"]:
        what += f"\nfront of {' followed by '.join(result['halves'])} only"
    if "ended" in result:
        what += f"\nsearch ended: {result['ended']}"
    points = [
        [
            f"({p['chunks']}, {p['steps']}, {p['rounds']})", p["rounds_per_chunk"],
            "yes" if p["proved"] else "open: " + " ".join(str(tuple(shape)) for shape in p["open"]),
            " and ".join(w for w, on in (("latency", p["latency_optimal"]), ("bandwidth", p["bandwidth_optimal"])) if on),
        ]
        for p in result["points"]
    ]  # fmt: skip
    tables = [plain_table(what, ("(chunks, steps, rounds)", "rounds per chunk", "proved", "optimal in"), points)]
    names = [row[0] for row in points]
    rows = [
        [format_size(row["size_bytes"]), *map(format_time, row["times_us"]), names[row["winner"]]]
        for row in result["sizes"]
    ]
    tables.append(plain_table(f"time of each on the machine, {ON_WIRES}", ("size", *names, "fastest"), rows))
    return tables
