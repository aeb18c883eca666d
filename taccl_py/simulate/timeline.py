"""Timeline: what a replay found, as records that tables, plots and traces are made from."""

from __future__ import annotations

from dataclasses import dataclass

from taccl_py.pickles import pickled_by_fields
from taccl_py.simulate.arbiter import SwitchUse
from taccl_py.units import algbw_gbps, format_ranks


@dataclass(frozen=True, slots=True)
class RuntimeStep:
    """A step of a threadblock under a runtime profile.

    Attributes
    ----------
    rank, threadblock, step
        Whose it is.
    iteration
        Which run of the program over slices of the data, from 0 on.
    start_us, end_us
        When it began to move data, and when it was done; times count from the call.
    size_bytes
        Bytes that it moved.
    """

    rank: int
    threadblock: int
    step: int
    iteration: int
    start_us: float
    end_us: float
    size_bytes: float


@dataclass(frozen=True)
class RuntimeSteps:
    """Steps of the first iterations of a program under a runtime profile.

    Attributes
    ----------
    steps
        Those that move data, of a threadblock in their order.
    launch_us
        Time before the first of them can begin.
    iterations, shown
        Iterations of the call, and how many of them are here.
    """

    steps: tuple[RuntimeStep, ...]
    launch_us: float
    iterations: int
    shown: int


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class Transfer:
    """Data that crossed one link as one piece.

    Attributes
    ----------
    link
        Index into ``topology.links``.
    src, dst
        Ranks of that link.
    start_us
        When it began to occupy its link and ports.
    end_us
        When it had arrived.
    size_bytes
        Bytes that crossed the link.
    message
        Index of the schedule's message, or -1 when a program was replayed.
    threadblock, step
        Threadblock of rank `src` and its step that sent, or -1 when a schedule was replayed.
    """

    link: int
    src: int
    dst: int
    start_us: float
    end_us: float
    size_bytes: float
    message: int = -1
    threadblock: int = -1
    step: int = -1


@dataclass(frozen=True, slots=True)
class SwitchWork:
    """Work of a switch for a threadblock.

    Attributes
    ----------
    rank, threadblock, step
        Who asked for it, with which of its operations.
    adds_up
        Whether it added up what ranks hold before it stored that.
    stored
        Ranks at which it stored.
    start_us, end_us
        When it was asked, and when all was stored.
    size_bytes
        Bytes that each of them got.
    uses
        When links and ports were busy with it.
    """

    rank: int
    threadblock: int
    step: int
    adds_up: bool
    stored: tuple[int, ...]
    start_us: float
    end_us: float
    size_bytes: float
    uses: tuple[SwitchUse, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """All transfers of one run.

    Attributes
    ----------
    makespan_us
        Time at which the last rank is done.
    transfers
        Sorted by (start, link, end).
    size_bytes
        Size of the collective as nccl-tests counts it.
    busbw_factor
        Bus bandwidth over algorithm bandwidth.
    switched
        Work of switches, sorted by (start, rank, threadblock).
    """

    makespan_us: float
    transfers: tuple[Transfer, ...]
    size_bytes: float
    busbw_factor: float
    switched: tuple[SwitchWork, ...] = ()

    @property
    def algbw_gbps(self) -> float | None:
        """Algorithm bandwidth in GB/s, or None where nothing moved."""
        return algbw_gbps(self.size_bytes, self.makespan_us) if self.makespan_us > 0 else None

    @property
    def busbw_gbps(self) -> float | None:
        """Bus bandwidth in GB/s, or None where there is no algorithm bandwidth."""
        algbw = self.algbw_gbps
        return None if algbw is None else algbw * self.busbw_factor

    def __str__(self) -> str:
        """Text form: one line for each transfer."""
        lines = [f"{len(self.transfers)} transfers, {self.makespan_us:.6g} us"]
        for transfer in self.transfers:
            what = (
                f"message {transfer.message}"
                if transfer.message >= 0
                else f"tb {transfer.threadblock} step {transfer.step}"
            )
            lines.append(
                f"{transfer.start_us:12.4f} {transfer.end_us:12.4f}  {transfer.src:3d} -> {transfer.dst:<3d} "
                f"{transfer.size_bytes:.6g} bytes, {what}"
            )
        for work in self.switched:
            lines.append(
                f"{work.start_us:12.4f} {work.end_us:12.4f}  {work.rank:3d} -> {format_ranks(work.stored)} by switch "
                f"{work.size_bytes:.6g} bytes, tb {work.threadblock} step {work.step}"
            )
        return "\n".join(lines) + "\n"


def sort_transfers(transfers: list[Transfer]) -> tuple[Transfer, ...]:
    """Transfers in the order that timelines use."""
    return tuple(sorted(transfers, key=lambda transfer: (transfer.start_us, transfer.link, transfer.end_us)))
