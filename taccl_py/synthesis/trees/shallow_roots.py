"""Trees through roots with short paths: of packings with about the same load, those over which a piece passes soonest.

A packing counts loads alone, and of many that are as good its linear program finds any. In a plan of rounds (`taccl_py.synthesis.trees.rounds`)
the alphas of the fullest link or port count too, and the longest path of a piece. CP-SAT finds the trees for which all of that is least:
one link into every rank of each tree, and times at ranks that grow along links. With one pair of trees for all data fewer messages are sent than
with several, which often pays though links are loaded a little more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from taccl_py.solvers.cp_sat import SolverOutcome, import_cp_model, solve_cp
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.apportion import apportion
from taccl_py.synthesis.bounds.roots import RootParts, RootTrees
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.order import PieceCosts
from taccl_py.synthesis.trees.packing import Packing
from taccl_py.synthesis.trees.params import PARAMS
from taccl_py.synthesis.trees.rounds import least_time_of_rounds_us
from taccl_py.synthesis.trees.through_roots import of_large_parts, pieces_through_roots
from taccl_py.work import RATES


@dataclass(frozen=True, eq=False)
class PromisedParts:
    """Parts of the data with their trees, and about how long a plan of so many rounds takes on them."""

    parts: RootParts
    rounds: int
    time_us: float


class ShortPaths:
    """Parts and trees for plans that take less time.

    Parameters
    ----------
    network
        The machine without symmetry.
    chunk_bytes
        Size of a chunk of all data, given their number.
    limits
        Time, seed, and the user's interrupt.
    root
        The only root, from which data is handed out; None where it is summed up first, at any rank.
    """

    def __init__(
        self,
        network: CapacityNetwork,
        chunk_bytes: Callable[[int], float],
        limits: Limits,
        root: int | None = None,
    ) -> None:
        self._network, self._chunk_bytes, self._limits, self._root = network, chunk_bytes, limits, root
        self._deadline = limits.deadline()
        self._work_left = min(PARAMS.root_work, PARAMS.root_work_part * limits.seconds / RATES.pipelined)

    def best(self, packing: RootParts, others: Sequence[RootParts] = ()) -> list[PromisedParts]:
        """Parts with shorter paths in place of those of a packing, the most promising ones first, none that promise much less, and last the packing's.

        Other packings, as those of trees with few hops, compete with what is found.

        Of an AllReduce, that is: plans on the many parts of a packing may take less time than they promise.

        Raises
        ------
        PackageMissing
            If OR-tools is not installed.
        """
        known = self.promised(of_large_parts(packing))
        shares = tuple(float(amount) for amount in known.parts.amounts)
        found = [known, *(self.promised(of_large_parts(parts)) for parts in others)]
        for several in dict.fromkeys(((1.0,), shares, *((1 / parts,) * parts for parts in PARAMS.root_parts))):
            short = self._shortened(known, several)
            if short is not None and (len(several) != len(shares) or short.time_us < known.time_us):
                found.append(short)
        least_us = min(each.time_us for each in found)
        near = [each for each in found if each.time_us <= least_us * PARAMS.root_promise_factor]
        few = sorted(near, key=_price)[: PARAMS.most_root_packings]
        return few if known in few or self._root is not None else [*few, known]

    def promised(self, parts: RootParts) -> PromisedParts:
        """Parts with the number of rounds for which a plan promises to take least time."""
        once = pieces_through_roots(self._network, parts, 1)
        grains = PARAMS.round_piece_chunks * len(once.sizes)
        costs = PieceCosts.of(self._network, self._chunk_bytes(grains), apportion(list(once.sizes), grains))
        times_us = {rounds: least_time_of_rounds_us(once.transfers, costs, rounds) for rounds in PARAMS.round_counts}
        rounds = min(times_us, key=lambda each: times_us[each])
        return PromisedParts(parts, rounds, times_us[rounds])

    def _shortened(self, known: PromisedParts, shares: Sequence[float]) -> PromisedParts | None:
        """Trees for parts of these sizes; anew if a plan of another number of rounds is best on them. None if none are found soon."""
        if len(shares) * len(self._network.src) * (1 if self._root is not None else 2) > PARAMS.most_root_places:
            return None
        best: PromisedParts | None = None
        rounds = known.rounds
        for _ in range(PARAMS.most_shortened):
            if self._work_left <= 0 or self._deadline.over():
                break
            whole = PieceCosts.of(self._network, self._chunk_bytes(1), (1,))
            model = _ShortPathModel(self._network, whole, shares, rounds, known.time_us / PARAMS.root_ticks, self._root)
            model.hint(known.parts.trees)
            work = self._work_left * PARAMS.root_turn_part
            limits = replace(self._limits.within(self._deadline.left), work=work)
            outcome = solve_cp(model.model, limits, kind="pipelined")
            self._work_left -= outcome.work
            if outcome.objective is None:
                break
            short = self.promised(RootParts(model.trees(outcome), np.array(shares)))
            if best is not None and short.time_us >= best.time_us:
                break
            best = short
            if best.rounds == rounds:
                break
            rounds = best.rounds
        return best


def handed_out(packing: Packing, root: int) -> RootParts:
    """Parts that are handed out from the only root along the trees of a packing."""
    nothing = np.array([], dtype=np.int64)
    return RootParts(tuple(RootTrees(root, nothing, tree.used()) for tree in packing.trees), packing.amounts)


def _price(promised: PromisedParts) -> float:
    """Time that is promised, of many trees a little more: their messages fit less well."""
    return promised.time_us * (1 + PARAMS.tree_price * len(promised.parts.trees))


class _ShortPathModel:
    """CP-SAT: which links trees use, so that loads of all rounds and the longest path of a piece are least together.

    Parameters
    ----------
    network
        The machine without symmetry.
    costs
        Costs of a chunk that is all data.
    shares
        Parts of the data, each with two trees of its own.
    rounds
        Pieces of every part.
    tick_us
        Unit of time.
    root
        As for `ShortPaths`.
    """

    def __init__(
        self,
        network: CapacityNetwork,
        costs: PieceCosts,
        shares: Sequence[float],
        rounds: int,
        tick_us: float,
        root: int | None,
    ) -> None:
        self._network, self._root = network, root
        self.model = import_cp_model().CpModel()
        self._links, self._ranks = range(len(network.src)), range(network.num_ranks)
        longest, busy = self._time("longest"), self._time("busy")
        self._roots: list[list[Any]] = []
        # Whether a link is in the tree into the root, and in the one out of it, [part][tree][link].
        self._used: list[list[list[Any]]] = []
        loads: dict[int, list[Any]] = {}
        for share in shares:
            messages = [costs.of_message(link, share / rounds) for link in self._links]
            self._add_part([max(1, round(cost.time_us / tick_us)) for cost in messages], longest)
            for used, (link, cost) in product(self._used[-1], enumerate(messages)):
                for resource, time_us in cost.occupied:
                    loads.setdefault(resource, []).append(round(time_us * rounds / tick_us) * used[link])
        for load in loads.values():
            self.model.add(busy >= sum(load))
        self.model.minimize(busy + longest)

    def _time(self, name: str = "") -> Any:
        """A time in ticks; trees that take much longer than what is known are not looked for."""
        return self.model.new_int_var(0, 2 * PARAMS.root_ticks, name)

    def _add_part(self, lasting: Sequence[int], longest: Any) -> None:
        """A root and two trees over whose links a piece passes in so many ticks; both paths together are no longer than the longest."""
        model, (src, dst) = self.model, (self._network.src.tolist(), self._network.dst.tolist())
        root = [model.new_bool_var("") for _ in self._ranks]
        model.add_exactly_one(root)
        if self._root is not None:
            model.add(root[self._root] == 1)
        trees, ends = [], []
        for tails, heads in ((dst, src), (src, dst)) if self._root is None else ((src, dst),):
            used = [model.new_bool_var("") for _ in self._links]
            at, end = [self._time() for _ in self._ranks], self._time()
            for rank in self._ranks:
                model.add_exactly_one([root[rank], *(used[link] for link in self._links if heads[link] == rank)])
                model.add(at[rank] <= end)
            for link in self._links:
                model.add(at[heads[link]] >= at[tails[link]] + lasting[link]).only_enforce_if(used[link])
            trees.append(used)
            ends.append(end)
        model.add(sum(ends) <= longest)
        self._roots.append(root)
        self._used.append(trees)

    def hint(self, trees: Sequence[RootTrees]) -> None:
        """Begin with known trees, if there are as many."""
        if len(trees) != len(self._roots):
            return
        for known, root, used in zip(trees, self._roots, self._used, strict=True):
            for rank in self._ranks:
                self.model.add_hint(root[rank], rank == known.root)
            for links, chosen in zip(
                (known.into, known.out) if self._root is None else (known.out,), used, strict=True
            ):
                for link in self._links:
                    self.model.add_hint(chosen[link], link in links)

    def trees(self, outcome: SolverOutcome) -> tuple[RootTrees, ...]:
        """Trees of a solution."""

        def links(chosen: list[Any]) -> Any:
            return np.flatnonzero([outcome.value(each) for each in chosen])

        return tuple(
            RootTrees(
                next(rank for rank in self._ranks if outcome.value(root[rank])),
                links(used[0] if self._root is None else []),
                links(used[-1]),
            )
            for root, used in zip(self._roots, self._used, strict=True)
        )
