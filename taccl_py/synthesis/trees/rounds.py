"""Rounds: every tree passes one piece on in each of them, and all of them are alike.

Where many pieces follow each other down trees, what repeats is what counts. One round has to fit on links and ports, in turns that may
run into the next round, and no more: what one transfer brings another sends on later, in the same round or one of the next. That is
software pipelining (Rau, "Iterative modulo scheduling", 1994). A dispatcher that decides transfer by transfer cannot see it: where
messages take two ports at once it leaves gaps again and again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from taccl_py.runtimes import MAX_XML_NODES
from taccl_py.solvers.cp_sat import import_cp_model, solve_cp
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.apportion import apportion
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.order import MessageCost, OrderChoice, PieceCosts, TreeMessage, left_shifted
from taccl_py.synthesis.trees.params import PARAMS
from taccl_py.synthesis.trees.transfers import PieceTransfer
from taccl_py.work import count_work


@dataclass(frozen=True)
class PieceRound:
    """Starts of one round's transfers.

    Attributes
    ----------
    period_us
        From one round to the next.
    start_us
        When every transfer of the first round starts, [transfer].
    end_us
        When the first round has arrived everywhere.
    """

    period_us: float
    start_us: tuple[float, ...]
    end_us: float


@dataclass(frozen=True)
class RoundLoad:
    """Load of a link or port, as a function of how many rounds there are.

    Attributes
    ----------
    fixed_us
        Alphas of one round.
    data_us
        Time of all data, in all rounds.
    """

    fixed_us: float
    data_us: float


def round_loads(transfers: Sequence[PieceTransfer], costs: PieceCosts) -> list[RoundLoad]:
    """Loads of links and ports that are used, if `costs` are those of all data in one round."""
    fixed: dict[int, float] = {}
    data: dict[int, float] = {}
    for transfer in transfers:
        size, link = costs.size((transfer,)), transfer.link
        rows = zip(costs.resources[link], costs.alpha_us[link], costs.chunk_us[link], strict=True)
        for resource, alpha_us, chunk_us in rows:
            fixed[resource] = fixed.get(resource, 0.0) + alpha_us
            data[resource] = data.get(resource, 0.0) + size * chunk_us
    return [RoundLoad(fixed[resource], data[resource]) for resource in fixed]


def time_of_rounds_us(loads: Sequence[RoundLoad], periods: float, rounds: int) -> float:
    """Estimate: the fullest link or port is busy without a pause for all rounds and as many periods more as the first round takes but one."""
    period_us = max(load.fixed_us + load.data_us / rounds for load in loads)
    return (rounds - 1 + periods) * period_us


def least_time_of_rounds_us(transfers: Sequence[PieceTransfer], costs: PieceCosts, rounds: int) -> float:
    """Estimate for transfers of one piece of each tree, if `costs` are those of one round: all pieces but one, and the longest path of that.

    The fullest link or port is busy without a pause.
    """
    each = costs.scaled(1 / rounds)
    arrival_us: list[float] = []
    for transfer in transfers:
        ready_us = max((arrival_us[earlier] for earlier in transfer.after), default=0.0)
        arrival_us.append(ready_us + each.of_message(transfer.link, costs.size((transfer,))).time_us)
    busy_us = max(load.fixed_us * rounds + load.data_us for load in round_loads(transfers, costs))
    pieces = rounds * len({transfer.piece for transfer in transfers})
    return busy_us * (1 - 1 / pieces) + max(arrival_us)


def find_round(transfers: Sequence[PieceTransfer], costs: PieceCosts, limits: Limits) -> PieceRound | None:
    """The round that arrives soonest of those that are hardly longer than the fullest link or port needs; None if there is none.

    Parameters
    ----------
    transfers
        Transfers of one piece of each tree.
    costs
        What they cost.
    limits
        Time, seed, and the user's interrupt.

    Raises
    ------
    PackageMissing
        If OR-tools is not installed.
    """
    each = [costs.of_message(transfer.link, costs.size((transfer,))) for transfer in transfers]
    fullest_us = max(load.fixed_us + load.data_us for load in round_loads(transfers, costs))
    deadline = limits.deadline()
    for slack in PARAMS.round_slacks:
        if deadline.over():
            break
        period_us = fullest_us * (1 + slack)
        model = _RoundModel(transfers, each, PARAMS.round_ticks / period_us)
        outcome = solve_cp(model.model, replace(limits.within(deadline.left), work=PARAMS.round_work), kind="pipelined")
        if outcome.objective is not None:
            tick_us = period_us / PARAMS.round_ticks
            starts = tuple(outcome.value(start) * tick_us for start in model.starts)
            end_us = max(start + cost.time_us for start, cost in zip(starts, each, strict=True))
            return PieceRound(period_us, starts, end_us)
    return None


class _RoundModel:
    """CP-SAT: when in the period every transfer starts, and how many periods after the first one begins."""

    def __init__(self, transfers: Sequence[PieceTransfer], costs: Sequence[MessageCost], ticks_per_us: float) -> None:
        self.model = import_cp_model().CpModel()
        self.starts: list[Any] = []
        period = PARAMS.round_ticks
        most = max(1, len(transfers)) * math.ceil(max(cost.time_us for cost in costs) * ticks_per_us / period + 1)
        end = self.model.new_int_var(0, most * period, "end")
        turns: dict[int, list[Any]] = {}
        for transfer, cost in zip(transfers, costs, strict=True):
            offset = self.model.new_int_var(0, period - 1, "")
            start = self.model.new_int_var(0, most * period, "")
            self.model.add(start == offset + period * self.model.new_int_var(0, most, ""))
            self.starts.append(start)
            self.model.add(end >= start + math.ceil(cost.time_us * ticks_per_us))
            for earlier in transfer.after:
                time = math.ceil(costs[earlier].time_us * ticks_per_us)
                self.model.add(start >= self.starts[earlier] + time)
            for resource, time_us in cost.occupied:
                # Turns are rounded, so that all of them fit; the plan's exact times come from their order.
                time = math.floor(time_us * ticks_per_us)
                turns.setdefault(resource, []).append((offset, time))
        for taken in turns.values():
            self._keep_apart([(offset, min(time, period)) for offset, time in taken if time > 0])
        self.model.minimize(end)

    def _keep_apart(self, taken: list[tuple[Any, int]]) -> None:
        """No two turns at once, nor one and one of the next period."""
        if len(taken) > 1:
            again = [(offset + shift, time) for shift in (0, PARAMS.round_ticks) for offset, time in taken]
            self.model.add_no_overlap(
                [self.model.new_fixed_size_interval_var(begin, time, "") for begin, time in again]
            )


def repeated(transfers: Sequence[PieceTransfer], rounds: int) -> tuple[PieceTransfer, ...]:
    """Transfers of so many rounds, one round after the other; what was one piece is so many neighbours."""
    count = len(transfers)
    return tuple(
        replace(
            transfer, piece=transfer.piece * rounds + number, ahead=number / rounds,
            after=tuple(number * count + earlier for earlier in transfer.after),
        )
        for number in range(rounds)
        for transfer in transfers
    )  # fmt: skip


def messages_of(found: PieceRound, rounds: int) -> list[TreeMessage]:
    """Messages of transfers that are repeated so often, in the order of their starts; ends are left open."""
    count = len(found.start_us)
    return [
        TreeMessage((number * count + index,), start + number * found.period_us, math.inf)
        for number in range(rounds)
        for index, start in enumerate(found.start_us)
    ]


class RoundSearch:
    """Plans of rounds, as many of them as pay.

    Parameters
    ----------
    network
        The machine.
    chunk_bytes
        Size of a chunk of the only root's data, given their number.
    counts
        Numbers of chunks that the data may have, ascending.
    limits
        Time, and the user's interrupt.
    """

    def __init__(
        self, network: CapacityNetwork, chunk_bytes: Callable[[int], float], counts: Sequence[int], limits: Limits
    ) -> None:
        self._network, self._chunk_bytes, self._counts, self._limits = network, chunk_bytes, counts, limits

    def plans(self, transfers: Sequence[PieceTransfer], sizes: Sequence[float]) -> list[OrderChoice]:
        """Plans of transfers of one piece of each tree, whose data have these shares of all."""
        possible = self._possible(transfers)
        if not possible or len(transfers) > PARAMS.most_round_transfers:
            return []
        grains = PARAMS.round_piece_chunks * len(sizes)
        grain = PieceCosts.of(self._network, self._chunk_bytes(grains), apportion(list(sizes), grains))
        promising = min(possible, key=lambda rounds: least_time_of_rounds_us(transfers, grain, rounds))
        found = find_round(transfers, grain.scaled(1 / promising), self._limits)
        if found is None:
            return []
        choices = []
        for rounds in self._tried(transfers, round_loads(transfers, grain), found, possible):
            least = PARAMS.root_piece_chunks * rounds * len(sizes)
            count = min((each for each in self._counts if each >= least), default=None)
            if count is not None:
                pieces = apportion([size / rounds for size in sizes for _ in range(rounds)], count)
                costs = PieceCosts.of(self._network, self._chunk_bytes(count), pieces)
                every = repeated(transfers, rounds)
                count_work("placed", len(every))
                plan = left_shifted(every, costs, messages_of(found, rounds))
                choices.append(OrderChoice(every, costs, count, None, plan, sized=True))
        return choices

    def _possible(self, transfers: Sequence[PieceTransfer]) -> list[int]:
        """Numbers of rounds for whose messages every rank has room."""
        busiest = self._network.busiest([transfer.link for transfer in transfers])
        most = min(PARAMS.step_part * MAX_XML_NODES / busiest, PARAMS.most_root_messages / len(transfers))
        return [rounds for rounds in PARAMS.round_counts if rounds <= most]

    def _tried(
        self, transfers: Sequence[PieceTransfer], loads: Sequence[RoundLoad], found: PieceRound, possible: Sequence[int]
    ) -> list[int]:
        """The number that promises most, its neighbours, and the best one for which better sizes can be found."""
        periods = found.end_us / found.period_us
        best = possible.index(_best_count(loads, periods, possible))
        few = [rounds for rounds in possible if rounds * len(transfers) <= PARAMS.most_sized_messages]
        return sorted({*possible[max(0, best - 1) : best + 2], *([_best_count(loads, periods, few)] if few else [])})


def _best_count(loads: Sequence[RoundLoad], periods: float, possible: Sequence[int]) -> int:
    return min(possible, key=lambda rounds: time_of_rounds_us(loads, periods, rounds))
