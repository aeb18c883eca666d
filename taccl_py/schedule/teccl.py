"""Schedules that TE-CCL wrote: AllGather of whole chunks, as what its solver of the model with copies prints.

``7-Flows`` has a line for each chunk that crosses a link, or a path over switches, in an epoch; ``6-Demand_Met`` names the GPUs.
Sizes are not stated: times are in TE-CCL's epochs, one for a chunk on a link.
"""

from __future__ import annotations

import re
from typing import Any

from taccl_py.collective import Collective, Kind
from taccl_py.errors import InputError
from taccl_py.jsonio import Fields, parse_json
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.schedule.timing import build_schedule
from taccl_py.topology.model import Link, Topology
from taccl_py.units import BYTES_PER_MB

_FLOWS, _DEMAND, _EPOCH = "7-Flows", "6-Demand_Met", "1-Epoch_Duration"
_FLOW = re.compile(
    r"Chunk ([0-9]+) from ([0-9]+) traveled over ([0-9]+)->([0-9]+)(?: with volume ([0-9.eE+-]+))? in epoch ([0-9]+)(?: via switches .*)?"
)
_Flow = tuple[int, int, int, int, int]  # epoch, chunk, its source, from, to


def is_teccl_schedule(text: str) -> bool:
    """Whether a text is a schedule that TE-CCL wrote."""
    return text.lstrip()[:1] == "{" and f'"{_FLOWS}"' in text


def read_teccl_schedule(text: str, path: str) -> Schedule:
    """Schedule of a text that TE-CCL wrote.

    Parameters
    ----------
    text
        What the file holds.
    path
        File name for error messages.

    Raises
    ------
    InputError
        If a field or a flow is wrong, a GPU sends what it does not have, parts of chunks are sent, or it is no AllGather.
    """
    fields = Fields(parse_json(text, path), path)
    epoch_us = 1e6 * fields.number(_EPOCH, above=0.0)
    ranks, chunks = _demand(fields)
    flows = sorted(_flow(fields, place, line) for place, line in enumerate(fields.items(_FLOWS)))
    collective = Collective(Kind.ALLGATHER, len(ranks), chunks)
    held = {(rank, rank * chunks + part) for rank in ranks.values() for part in range(chunks)}
    kept: list[tuple[int, int, int, int]] = []  # epoch, chunk, from, to
    for epoch, part, source, src, dst in flows:
        if not {source, src, dst} <= ranks.keys() or part >= chunks:
            fields.fail(_FLOWS, f"chunk {part} from {source} over {src}->{dst}: {_DEMAND} names no such chunk or GPU")
        chunk = ranks[source] * chunks + part
        if (ranks[src], chunk) not in held:
            fields.fail(_FLOWS, f"GPU {src} sends chunk {part} from {source} in epoch {epoch} before it has it")
        if (ranks[dst], chunk) not in held:  # flows that nobody needs are left in by its early stop
            kept.append((epoch, chunk, ranks[src], ranks[dst]))
            held.add((ranks[dst], chunk))
    return _schedule(collective, kept, epoch_us, path)


def _schedule(collective: Collective, flows: list[tuple[int, int, int, int]], epoch_us: float, path: str) -> Schedule:
    pairs = sorted({(src, dst) for _, _, src, dst in flows})
    links = tuple(Link(src, dst, 0.0, epoch_us) for src, dst in pairs)
    number = {pair: index for index, pair in enumerate(pairs)}
    drafts = [
        UntimedMessage(number[src, dst], (chunk,), float(epoch), float(epoch + 1)) for epoch, chunk, src, dst in flows
    ]
    try:
        machine = Topology("te-ccl", f"links that {path} uses, one epoch for a chunk", (0,) * collective.num_ranks, (), links,
                           chunk_costs=True)  # fmt: skip
        return build_schedule(machine, collective, BYTES_PER_MB, drafts)
    except InputError as error:
        raise InputError(error.what, path=path) from None


def _demand(fields: Fields) -> tuple[dict[int, int], int]:
    """Rank of every GPU, and the chunks of each."""
    demand = fields.object(_DEMAND)
    found: dict[int, dict[int, set[str]]] = {}
    for name in demand.names():
        others = demand.object(name)
        found[_gpu(demand, name)] = {_gpu(others, other): set(others.object(other).names()) for other in others.names()}
    gpus = sorted(found)
    chunks = {frozenset(parts) for others in found.values() for parts in others.values()}
    every = all(sorted({gpu, *others}) == gpus for gpu, others in found.items())
    if len(chunks) != 1 or not every:
        fields.fail(
            _DEMAND, "is no AllGather, in which every GPU gets the same chunks of all others; only that is converted"
        )
    return {gpu: rank for rank, gpu in enumerate(gpus)}, len(next(iter(chunks)))


def _gpu(fields: Fields, name: str) -> int:
    match = re.fullmatch(r"GPU ([0-9]{1,9})", name)
    if match is None:
        fields.fail(name, f"found {name!r}, GPU and a number are needed")
    return int(match[1])


def _flow(fields: Fields, place: int, line: Any) -> _Flow:
    match = _FLOW.fullmatch(line) if isinstance(line, str) else None
    if match is None:
        fields.fail(
            f"{_FLOWS}/{place}",
            "is no line as 'Chunk 0 from 1 traveled over 1->5 in epoch 0'; give the file as TE-CCL wrote it",
        )
    if match[5] is not None and float(match[5]) != 1.0:
        fields.fail(
            f"{_FLOWS}/{place}", f"sends {match[5]} of a chunk; only schedules of whole chunks can be converted"
        )
    part, source, src, dst = (int(match[number]) for number in (1, 2, 3, 4))
    return int(match[6]), part, source, src, dst
