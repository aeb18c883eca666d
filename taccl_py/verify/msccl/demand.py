"""Contents of cells when a demand is met: which summands, as sets of places in the inputs.

Where several ranks hold one summand their places hold the same. A value is the list of places that are in it, so a sum that lacks one, or has
one twice, is another value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from taccl_py.collective import Buffer
from taccl_py.demand import DataDemand
from taccl_py.runtimes import CUSTOM, Runtime
from taccl_py.verify.msccl.findings import Findings, place, quoted
from taccl_py.verify.msccl.geometry import Region
from taccl_py.verify.msccl.grammar import AlgoElement
from taccl_py.verify.msccl.operations import KernelProgram
from taccl_py.verify.msccl.semantics import WRONG, Contents, RunSetting

# Numbers of the cells of a rank's buffer from an offset in bytes on, for so many bytes.
CellsOf = Callable[[int, Buffer, int, int], range]
_Cell = tuple[int, int]
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class DemandMeaning:
    """Demand in cells.

    Attributes
    ----------
    demand
        The demand.
    first_of
        For every cell of an input that holds the same as another one, the first such cell.
    wanted
        For every rank and cell of its output that is wanted, the sorted list of the first cells of all summands.
    """

    demand: DataDemand
    first_of: dict[_Cell, _Cell]
    wanted: dict[_Cell, tuple[_Cell, ...]]

    @staticmethod
    def of(demand: DataDemand, cells_of: CellsOf) -> DemandMeaning:
        """Meaning of a demand whose places are cut into cells alike wherever they hold the same."""
        parents: dict[_Cell, _Cell] = {}

        def root(cell: _Cell) -> _Cell:
            while cell in parents:
                cell = parents[cell]
            return cell

        def join(one: _Cell, other: _Cell) -> None:
            low, high = sorted((root(one), root(other)))
            if low != high:
                parents[high] = low

        for chunk, term in ((each, term) for each in demand.chunks for term in each.terms):
            rows = [[(rank, c) for c in cells_of(rank, Buffer.INPUT, at, chunk.size_bytes)] for rank, at in term]
            for same in zip(*rows, strict=True):
                for one in same[1:]:
                    join(same[0], one)
        wanted: dict[_Cell, tuple[_Cell, ...]] = {}
        for chunk in demand.chunks:
            rows = []
            for term in chunk.terms:
                rank, at = term[0]
                rows.append([root((rank, cell)) for cell in cells_of(rank, Buffer.INPUT, at, chunk.size_bytes)])
            values = [tuple(sorted(summands)) for summands in zip(*rows, strict=True)]
            for rank, at in chunk.wants:
                cells = cells_of(rank, Buffer.OUTPUT, at, chunk.size_bytes)
                wanted.update({(rank, cell): value for cell, value in zip(cells, values, strict=True)})
        return DemandMeaning(demand, {cell: root(cell) for cell in parents}, wanted)


@dataclass(frozen=True, slots=True)
class DemandUnits:
    """A demand in the chunks of a file, which all are of one size.

    Attributes
    ----------
    meaning
        The demand in chunks.
    lengths
        Of every rank's input and output, in chunks; the file counts all as long as the longest.
    """

    meaning: DemandMeaning
    lengths: tuple[dict[Buffer, int], ...]

    def check_places(self, plan: KernelProgram, findings: Findings) -> None:
        """Report steps that reach beyond buffers of the demand."""
        for operation in plan.operations:
            block = plan.blocks[operation.block]
            for address in (*operation.reads, *operation.writes):
                length = self.lengths[block.gpu].get(address.buffer)
                end = address.offset + operation.step.count
                if length is not None and end > length:
                    what = f"{address.buffer}[{address.offset}..{end - 1}] ends after the {length} chunks of that buffer; keep inside"
                    where = place(block.gpu, block.id, operation.step.index)
                    findings.violation(where, "outside-buffer", what, fatal=True)


def fit_units(algorithm: AlgoElement, runtime: Runtime, demand: DataDemand, findings: Findings) -> DemandUnits | None:
    """Demand in the chunks of a file; None, with the reason, if that is not for it."""
    chunks, longest = algorithm.num_chunks_per_loop, demand.longest_bytes
    if algorithm.collective != CUSTOM or CUSTOM not in runtime.collectives.values():
        what = f"coll={quoted(algorithm.collective)} for {runtime.title}; only a file of legacy MSCCL with coll={CUSTOM!r} is for a demand"
        findings.violation("", "collective", what, fatal=True)
    if algorithm.placed_in:
        what = 'a demand has buffers apart, and the file is in place; write inplace="0"'
        findings.violation("", "placement", what, fatal=True)
    if algorithm.num_ranks != demand.num_ranks:
        what = f"the file is for {algorithm.num_ranks} ranks, and the demand has {demand.num_ranks}"
        findings.violation("", "rank-count", what, fatal=True)
    if chunks < 1 or longest % chunks:
        what = f"the longest buffer of the demand has {longest} bytes, no multiple of nchunksperloop={chunks}"
        findings.violation("", "chunks-per-loop", what, fatal=True)
    if findings.broken:
        return None
    unit_bytes = longest // chunks
    ends = [at for chunk in demand.chunks for group in (*chunk.terms, chunk.wants) for _, at in group]
    ends += [chunk.size_bytes for chunk in demand.chunks]
    if unit_bytes % demand.element_bytes or any(end % unit_bytes for end in ends):
        what = f"chunks of {unit_bytes} bytes do not begin and end where those of the demand do"
        findings.violation("", "chunks-per-loop", what, fatal=True)
        return None
    largest = algorithm.max_bytes - 1 if runtime.max_bytes_exclusive else algorithm.max_bytes
    if not algorithm.min_bytes <= longest <= largest:
        what = f"it is for {algorithm.min_bytes} to {largest} bytes, and the longest buffer of the demand has {longest}"
        findings.violation("", "size-range", what)

    def cells_of(_rank: int, _buffer: Buffer, offset_bytes: int, size_bytes: int) -> range:
        return range(offset_bytes // unit_bytes, (offset_bytes + size_bytes) // unit_bytes)

    lengths = tuple(
        {Buffer.INPUT: given // unit_bytes, Buffer.OUTPUT: wanted // unit_bytes}
        for given, wanted in zip(demand.input_bytes, demand.output_bytes, strict=True)
    )
    return DemandUnits(DemandMeaning.of(demand, cells_of), lengths)


class DemandContents(Contents):
    """All cells of a program for a demand.

    Parameters
    ----------
    setting
        Out of place.
    findings
        What to reject.
    meaning
        The demand in the cells of the setting.
    """

    def __init__(self, setting: RunSetting, findings: Findings, meaning: DemandMeaning) -> None:
        self._meaning = meaning
        self._number_of: dict[tuple[_Cell, ...], int] = {}
        self._summands: list[tuple[_Cell, ...]] = []
        super().__init__(setting, findings)

    def _numbered(self, summands: tuple[_Cell, ...]) -> int:
        if summands not in self._number_of:
            self._number_of[summands] = len(self._summands)
            self._summands.append(summands)
        return self._number_of[summands]

    def _fill_input(self, rank: int, region: Region) -> None:
        for cell in range(region.output_base - region.input_base):
            first = self._meaning.first_of.get((rank, cell), (rank, cell))
            self.cells[rank][region.input_base + cell] = self._numbered((first,))

    def add(self, left: list[int], right: list[int], where: str) -> list[int]:  # noqa: ARG002
        """Sums, cell by cell; whether they are right is known at the end."""
        return [
            WRONG if a < 0 or b < 0 else self._numbered(tuple(sorted((*self._summands[a], *self._summands[b]))))
            for a, b in zip(left, right, strict=True)
        ]

    def describe(self, value: int) -> str:
        """Name of a value for people."""
        return super().describe(value) if value < 0 else self._named(self._summands[value])

    def _named(self, summands: tuple[_Cell, ...]) -> str:
        words = [f"cell {cell} of rank {rank}'s input" for rank, cell in summands]
        shown = words if len(words) <= _MOST_NAMED else [*words[:_MOST_NAMED], f"{len(words) - _MOST_NAMED} more"]
        return " + ".join(shown)

    def check_results(self, findings: Findings) -> None:
        """Report output cells that do not hold what the demand promises."""
        wrong: dict[int, list[int]] = {}
        totals: dict[int, int] = {}
        for (rank, cell), summands in self._meaning.wanted.items():
            totals[rank] = totals.get(rank, 0) + 1
            value = self.cell(rank, Buffer.OUTPUT, cell)
            if value < 0 or self._summands[value] != summands:
                wrong.setdefault(rank, []).append(cell)
        for rank, cells in sorted(wrong.items()):
            first = next((one for one in cells if self.cell(rank, Buffer.OUTPUT, one) != WRONG), cells[0])
            what = (
                f"{len(cells)} of {totals[rank]} output cells are wrong at the end: o[{first}] holds "
                f"{self.describe(self.cell(rank, Buffer.OUTPUT, first))} and must hold {self._named(self._meaning.wanted[rank, first])}"
            )
            findings.violation(place(rank), "wrong-result", what)
