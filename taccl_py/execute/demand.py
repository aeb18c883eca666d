"""Run a schedule of a demand on real data, all ranks in this process, message by message.

The file is read apart from what made and verified it. Inputs are drawn, equal where several ranks hold the same; a message takes what its
sender has when it starts, and its receiver has it when it has arrived. What comes out is compared with what the demand promises, computed from
the inputs alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taccl_py.demand import DataDemand
from taccl_py.demand.files import read_demand_fields
from taccl_py.errors import InputError
from taccl_py.execute.arithmetic import EXACT_BITS, Array, combine, encode, storage_type
from taccl_py.execute.plan import DataType, Operator
from taccl_py.jsonio import Fields, parse_json

FORMAT = "taccl-demand-schedule"
_VERSION = 1
_MOST_BYTES = 1 << 33
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class DataMessage:
    """A message as it is run: from rank to rank, with times in microseconds."""

    src: int
    dst: int
    chunks: tuple[int, ...]
    start_us: float
    end_us: float
    reduce: bool


@dataclass(frozen=True)
class DemandRun:
    """Outcome of a run.

    Attributes
    ----------
    outputs
        Output of every rank, as elements; empty after a program, whose memory is compared where it is.
    num_wrong
        Elements that are not what the demand promises.
    first_wrong
        Sentence on the first of them; empty if there is none.
    time_us
        How long it took here.
    """

    outputs: tuple[Array, ...]
    num_wrong: int
    first_wrong: str
    time_us: float


@dataclass(frozen=True)
class RunnableDemand:
    """Demand and messages of a file, whose name is for errors."""

    demand: DataDemand
    messages: tuple[DataMessage, ...]
    name: str = ""

    @property
    def num_ranks(self) -> int:
        """R."""
        return self.demand.num_ranks

    @staticmethod
    def read(text: str, path: str) -> RunnableDemand:
        """Read a schedule of a demand.

        Raises
        ------
        InputError
            If it is none.
        """
        fields = Fields(parse_json(text, path), path)
        fields.header(FORMAT, _VERSION)
        demand = read_demand_fields(fields.object("demand"))
        ends = [
            (each.integer("from", least=0), each.integer("to", least=0))
            for each in fields.object("topology").objects("links")
        ]
        ends.sort()
        messages = []
        for item in fields.objects("messages"):
            link, chunks = item.integer("link", least=0), tuple(item.integers("chunks", least=0))
            if link >= len(ends) or max(chunks, default=0) >= len(demand.chunks):
                item.fail("", "names a link or a chunk that does not exist")
            times = item.number("start_us", least=None), item.number("end_us", least=None)
            messages.append(DataMessage(*ends[link], chunks, *times, item.boolean("reduce")))
        return RunnableDemand(demand, tuple(messages), path)


def draw_inputs(demand: DataDemand, seed: int) -> tuple[Array, ...]:
    """Input of every rank as elements, of which sums are exact whatever their order; equal where several ranks hold the same.

    Raises
    ------
    InputError
        If that needs too much memory, or what ranks hold together cannot be equal.
    """
    if sum(demand.input_bytes) + sum(demand.output_bytes) > _MOST_BYTES:
        raise InputError(
            f"the buffers of all ranks have {sum(demand.input_bytes) + sum(demand.output_bytes)} bytes, and {_MOST_BYTES} can be run in "
            "this process; run a smaller demand"
        )
    data_type, size = DataType(demand.dtype), demand.element_bytes
    terms = max(len(chunk.terms) for chunk in demand.chunks)
    if data_type.is_float and terms > 1 << EXACT_BITS[data_type]:
        raise InputError(
            f"sums of {terms} terms are not exact in {demand.dtype}, so that nothing can be compared; use another type of elements"
        )
    high = (1 << EXACT_BITS[data_type]) // terms if data_type.is_float else 1 << min(8 * size - 1, 31)
    found = []
    for rank, length in enumerate(demand.input_bytes):
        rng = np.random.default_rng([seed, rank])
        numbers = rng.integers(1, max(2, high), length // size)
        found.append(encode(numbers.astype(np.float64 if data_type.is_float else storage_type(data_type)), data_type))
    # Each round makes one more rank of a chain equal.
    for _ in range(len(demand.chunks) + 1):
        if not _make_equal(demand, found):
            return tuple(found)
    raise InputError(
        f"what several ranks of {demand.name} hold together lies so that it cannot be the same; move it apart"
    )


def _make_equal(demand: DataDemand, inputs: Sequence[Array]) -> bool:
    """Give all holders of a term what the first one has; whether that changed anything."""
    changed = False
    for chunk in demand.chunks:
        for first, *others in chunk.terms:
            had = _slice(demand, inputs[first.rank], first.offset_bytes, chunk.size_bytes)
            for rank, offset in others:
                place = _slice(demand, inputs[rank], offset, chunk.size_bytes)
                if not np.array_equal(place, had):
                    place[...] = had
                    changed = True
    return changed


def _slice(demand: DataDemand, buffer: Array, offset_bytes: int, size_bytes: int) -> Array:
    size = demand.element_bytes
    return buffer[offset_bytes // size : (offset_bytes + size_bytes) // size]


class HeldChunks:
    """Chunks that some ranks hold, from their inputs on.

    Parameters
    ----------
    demand, inputs
        The demand, and the input of every rank.
    ranks
        Those that are looked at.
    """

    def __init__(self, demand: DataDemand, inputs: Sequence[Array], ranks: Sequence[int]) -> None:
        self._demand, self._ranks = demand, frozenset(ranks)
        self._data_type = DataType(demand.dtype)
        self._held = {
            (number, rank): _slice(demand, inputs[rank], offset, chunk.size_bytes)
            for number, chunk in enumerate(demand.chunks)
            for term in chunk.terms
            for rank, offset in term
            if rank in self._ranks
        }

    def values(self, number: int, rank: int) -> Array | None:
        """Elements that a rank holds of a chunk; they are never changed afterwards."""
        return self._held.get((number, rank))

    def nothing(self, number: int) -> Array:
        """As many zeros as a chunk has elements."""
        length = self._demand.chunks[number].size_bytes // self._demand.element_bytes
        return np.zeros(length, dtype=storage_type(self._data_type))

    def take(self, number: int, rank: int, values: Array, *, reduce: bool) -> None:
        """Let elements arrive."""
        own = self._held.get((number, rank)) if reduce else None
        self._held[number, rank] = values if own is None else combine(Operator.SUM, self._data_type, own, values)

    def outputs(self) -> tuple[Array, ...]:
        """Output of every rank, with what is held where it is wanted."""
        found = _empty_outputs(self._demand)
        for number, chunk in enumerate(self._demand.chunks):
            for rank, offset in chunk.wants:
                values = self._held.get((number, rank))
                if values is not None:
                    _slice(self._demand, found[rank], offset, chunk.size_bytes)[...] = values
        return found


def run_demand(runnable: RunnableDemand, inputs: Sequence[Array]) -> DemandRun:
    """Run the messages on these inputs, all ranks in this process, and compare."""
    demand, messages = runnable.demand, runnable.messages
    begun = time.perf_counter()
    held = HeldChunks(demand, inputs, range(demand.num_ranks))
    carried: list[dict[int, Array | None]] = [{} for _ in messages]
    for is_start, index in event_order(messages):
        message = messages[index]
        if is_start:
            carried[index] = {number: held.values(number, message.src) for number in message.chunks}
            continue
        for number, values in carried[index].items():
            if values is not None:
                held.take(number, message.dst, values, reduce=message.reduce)
    outputs = held.outputs()
    took_us = (time.perf_counter() - begun) * 1e6
    return DemandRun(outputs, *compare_outputs(demand, inputs, outputs, range(demand.num_ranks)), took_us)


def event_order(messages: Sequence[DataMessage]) -> list[tuple[bool, int]]:
    """Starts (True) and arrivals of messages, by number, in the order of time; what starts in the moment of an arrival comes after it."""
    found: list[tuple[float, bool, int]] = []
    for index, one in enumerate(messages):
        slack_us = _TOLERANCE * abs(one.end_us - one.start_us) + 16 * float(np.spacing(one.end_us))
        found += [(one.start_us, True, index), (max(one.end_us - slack_us, one.start_us), False, index)]
    return [(is_start, index) for _, is_start, index in sorted(found)]


def _empty_outputs(demand: DataDemand) -> tuple[Array, ...]:
    """Outputs in which nothing is that anybody promises."""
    data_type = DataType(demand.dtype)
    return tuple(
        np.zeros(length // demand.element_bytes, dtype=storage_type(data_type)) for length in demand.output_bytes
    )


def compare_outputs(
    demand: DataDemand, inputs: Sequence[Array], outputs: Sequence[Array], ranks: Sequence[int]
) -> tuple[int, str]:
    """Number of elements of some ranks' outputs that are not what the demand promises, and a sentence on the first one."""
    num_wrong, first_wrong = 0, ""
    for number, chunk in enumerate(demand.chunks):
        wanted = _promised(demand, inputs, number)
        for rank, offset in (place for place in chunk.wants if place.rank in ranks):
            found = _slice(demand, outputs[rank], offset, chunk.size_bytes)
            wrong = np.flatnonzero(found != wanted)
            if len(wrong) and not first_wrong:
                first_wrong = f"rank {rank} has another element {wrong[0]} of chunk {number} than the demand promises"
            num_wrong += len(wrong)
    return num_wrong, first_wrong


def promised_outputs(demand: DataDemand, inputs: Sequence[Array]) -> tuple[tuple[Array, Array], ...]:
    """Every rank's output, and which of its elements the demand promises."""
    outputs = _empty_outputs(demand)
    asked = tuple(np.zeros(len(output), dtype=np.bool_) for output in outputs)
    for number, chunk in enumerate(demand.chunks):
        wanted = _promised(demand, inputs, number)
        for rank, offset in chunk.wants:
            _slice(demand, outputs[rank], offset, chunk.size_bytes)[...] = wanted
            _slice(demand, asked[rank], offset, chunk.size_bytes)[...] = True
    return tuple(zip(outputs, asked, strict=True))


def _promised(demand: DataDemand, inputs: Sequence[Array], number: int) -> Array:
    """Elements of a chunk, or the sum of its terms."""
    chunk = demand.chunks[number]
    first, *others = (
        _slice(demand, inputs[term[0].rank], term[0].offset_bytes, chunk.size_bytes) for term in chunk.terms
    )
    for other in others:
        first = combine(Operator.SUM, DataType(demand.dtype), first, other)
    return first
