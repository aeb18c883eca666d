"""Schedules that TE-CCL wrote: AllGather of whole chunks, as its solver of the model with copies prints it, and AllToAll.

Of AllGather ``7-Flows`` has a line for each chunk that crosses a link, or a path over switches, in an epoch; ``6-Demand_Met`` names
the GPUs. Of AllToAll ``8-Chunk paths`` (older files: ``7-chunk paths``) has for each chunk its destination and the paths of its parts,
whose volumes are fractions of it; its flows repeat them, and equal ones only once (``teccl/solvers/alltoall.py`` of microsoft/TE-CCL).
Sizes are not stated: a chunk of TE-CCL takes an epoch on a link, and counts as 1 MB.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
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
_PATHS = ("8-Chunk paths", "7-chunk paths")
_FLOW = re.compile(
    r"Chunk ([0-9]+) from ([0-9]+) traveled over ([0-9]+)->([0-9]+)(?: with volume ([0-9.eE+-]+))? in epoch ([0-9]+)(?: via switches .*)?"
)
_WANTED = re.compile(r"Demand at ([0-9]{1,9}) for chunk ([0-9]{1,9}) from ([0-9]{1,9}) met by epoch [0-9]+")
_HOP = re.compile(
    r"([0-9]{1,9})->([0-9]{1,9}) with volume ([0-9]+(?:[.][0-9]+)?(?:e-?[0-9]+)?) in epoch ([0-9]{1,9})(?: via switches .*)?"
)
# A chunk is cut into as many pieces at most; volumes are rounded, so that they may differ from pieces by that.
_MOST_PIECES, _ROUNDING = 64, 1e-4
_Flow = tuple[int, int, int, int, int]  # epoch, chunk, its source, from, to


def is_teccl_schedule(text: str) -> bool:
    """True if a text is a schedule that TE-CCL wrote."""
    return text.lstrip()[:1] == "{" and any(f'"{key}"' in text for key in (_FLOWS, *_PATHS))


def read_teccl_schedule(text: str, path: str) -> Schedule:
    """Schedule of a text that TE-CCL wrote.

    Parameters
    ----------
    text
        Content of the file.
    path
        File name for error messages.

    Raises
    ------
    InputError
        If a field, a flow or a path is wrong, a GPU sends what it does not have, an AllGather sends parts of chunks, an AllToAll sends
        parts that are no whole pieces, or it is neither.
    """
    fields = Fields(parse_json(text, path), path)
    epoch_us = 1e6 * fields.number(_EPOCH, above=0.0)
    paths = next((key for key in _PATHS if fields.has(key)), "")
    if not fields.has(_DEMAND) and paths:
        return _alltoall(fields, paths, epoch_us, path)
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


def _alltoall(fields: Fields, paths: str, epoch_us: float, path: str) -> Schedule:
    """Schedule of an AllToAll, whose chunks are cut into equal pieces that each take one path."""
    wanted = fields.object(paths)
    paths_of = {}
    for name in wanted.names():
        match = _WANTED.fullmatch(name)
        if match is None:
            wanted.fail(
                name, "is no name as 'Demand at 1 for chunk 0 from 2 met by epoch 3'; give the file as TE-CCL wrote it"
            )
        dst, part, src = (int(match[number]) for number in (1, 2, 3))
        paths_of[src, dst, part] = [_path(wanted, name, hops, src, dst) for hops in wanted.items(name)]
    gpus = sorted({gpu for src, dst, _ in paths_of for gpu in (src, dst)})
    parts: dict[tuple[int, int], list[int]] = {}
    for src, dst, part in sorted(paths_of):
        parts.setdefault((src, dst), []).append(part)
    counts = {len(found) for found in parts.values()}
    if len(counts) != 1 or len(parts) != len(gpus) * (len(gpus) - 1):
        fields.fail(
            paths,
            "is no AllToAll, in which every GPU gets as many chunks of each other; only that and AllGather are converted",
        )
    pieces = _pieces(fields, paths, [volume for found in paths_of.values() for volume, _ in found])
    count = counts.pop() * pieces
    collective = Collective(Kind.ALLTOALL, len(gpus), count)
    rank = {gpu: number for number, gpu in enumerate(gpus)}
    flows = []
    for (src, dst, part), found in paths_of.items():
        first = (rank[src] * len(gpus) + rank[dst]) * count + parts[src, dst].index(part) * pieces
        cells = iter(range(first, first + pieces))
        if sum(round(volume * pieces) for volume, _ in found) != pieces:
            fields.fail(paths, f"the paths of chunk {part} from {src} to {dst} do not carry one chunk together")
        for volume, hops in found:
            taken = [next(cells) for _ in range(round(volume * pieces))]
            flows += [
                (epoch, cell, _rank(fields, paths, rank, a), _rank(fields, paths, rank, b))
                for epoch, a, b in hops
                for cell in taken
            ]
    return _schedule(collective, sorted(flows), epoch_us, path, pieces)


def _path(wanted: Fields, name: str, hops: Any, src: int, dst: int) -> tuple[float, list[tuple[int, int, int]]]:
    """Volume of a part of a chunk, and its hops: epoch, from, to."""
    found = list(_hops(wanted, name, hops))
    places = [src, *(b for _, _, b, _ in found)]
    in_order = all(one < other for one, other in pairwise(epoch for epoch, *_ in found))
    if (
        not found
        or not in_order
        or places[-1] != dst
        or any(a != place for (_, a, _, _), place in zip(found, places, strict=False))
    ):
        wanted.fail(name, f"has a path that does not lead from {src} to {dst} epoch by epoch")
    volumes = [volume for *_, volume in found]
    if max(volumes) - min(volumes) > _ROUNDING:
        wanted.fail(
            name,
            f"has a path that begins with {volumes[0]:g} of a chunk and goes on with {min(volumes[0], *volumes):g} or more of it",
        )
    return volumes[0], [(epoch, a, b) for epoch, a, b, _ in found]


def _hops(wanted: Fields, name: str, hops: Any) -> Iterator[tuple[int, int, int, float]]:
    for hop in hops if isinstance(hops, list) else [hops]:
        match = _HOP.fullmatch(hop[1]) if isinstance(hop, list) and len(hop) == 2 and isinstance(hop[1], str) else None
        if match is None:
            wanted.fail(
                name,
                "has a hop that is not as [0, '1->5 with volume 1.0 in epoch 0']; give the file as TE-CCL wrote it",
            )
        yield int(match[4]), int(match[1]), int(match[2]), float(match[3])


def _pieces(fields: Fields, paths: str, volumes: list[float]) -> int:
    """Smallest number of pieces of a chunk of which every volume is a whole number."""
    different = set(volumes)
    for count in range(1, _MOST_PIECES + 1):
        if all(
            abs(volume * count - round(volume * count)) <= _ROUNDING * count and round(volume * count)
            for volume in different
        ):
            return count
    return fields.fail(
        paths,
        f"cuts chunks into parts that are no whole number of up to {_MOST_PIECES} equal pieces; let TE-CCL solve with longer epochs",
    )


def _rank(fields: Fields, paths: str, rank: dict[int, int], gpu: int) -> int:
    if gpu not in rank:
        fields.fail(
            paths,
            f"GPU {gpu} passes chunks on, and wants and has none itself; a schedule with GPUs outside of the collective is not converted",
        )
    return rank[gpu]


def _schedule(
    collective: Collective, flows: list[tuple[int, int, int, int]], epoch_us: float, path: str, pieces: int = 1
) -> Schedule:
    """Schedule of what is sent (epoch, chunk, from, to); a chunk of TE-CCL, so many pieces, occupies a link for an epoch."""
    pairs = sorted({(src, dst) for _, _, src, dst in flows})
    links = tuple(Link(src, dst, 0.0, epoch_us) for src, dst in pairs)
    number = {pair: index for index, pair in enumerate(pairs)}
    together: dict[tuple[int, ...], list[int]] = {}
    for epoch, chunk, src, dst in flows:
        together.setdefault((epoch, src, dst) if pieces > 1 else (epoch, src, dst, chunk), []).append(chunk)
    untimed = [
        UntimedMessage(number[src, dst], tuple(chunks), float(epoch), float(epoch + 1))
        for (epoch, src, dst, *_), chunks in together.items()
    ]
    try:
        source = f"links that {path} uses: an epoch of {epoch_us:g} us for a chunk of TE-CCL, which counts as 1 MB"
        nodes = (0,) * collective.num_ranks
        machine = Topology("te-ccl", source, nodes, (), links, measured_chunk_bytes=BYTES_PER_MB)
        return build_schedule(machine, collective, BYTES_PER_MB / pieces, untimed)
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
