"""A machine with the trees on it, which are made when they are asked for."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from taccl_py.collective import Collective, Kind
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.reversal import ROUTED
from taccl_py.synthesis.trees.disjoint import disjoint_trees, least_whole_load_us, shares_only_links
from taccl_py.synthesis.trees.hub import both_directions
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.oriented import HubTrees
from taccl_py.synthesis.trees.packing import Packing, pack_trees
from taccl_py.synthesis.trees.rounding import TreeSet, least_load_us, round_packing
from taccl_py.synthesis.trees.turnaround import is_own_reverse
from taccl_py.synthesis.trees.work import TreeSearch

KINDS = tuple(kind for kind in ROUTED if kind is not Kind.ALLTOALL)


class TreePacking:
    """A machine with its packing, and whole trees for any number of parts.

    Parameters
    ----------
    demand
        What the trees are for.
    work
        The search that wants them.
    backwards
        Whether the machine is reversed.
    symmetric
        Whether symmetry may repeat trees.
    """

    def __init__(self, demand: Demand, work: TreeSearch, *, backwards: bool, symmetric: bool = True) -> None:
        topology, sketch = demand.topology, demand.sketch
        if backwards:
            topology = topology.reversed()
            sketch = None if sketch is None else sketch.for_sums(topology)
        collective = Collective(ROUTED[demand.kind], topology.num_ranks, 1, demand.root)
        problem = Problem.build(topology, collective, sketch, demand.chunk_bytes(demand.collective(1)))
        problem = replace(problem, message_chunks=demand.message_chunks)
        self._work = work
        self.network = CapacityNetwork.of(problem if symmetric else problem.without_symmetry())
        # The network whose links and ports trees share.
        self._packed = self.network
        self._packing: Packing | None = None
        self._tree_sets: dict[int, TreeSet] = {}
        self._grown: dict[tuple[int, int], TreeSet | None] = {}
        self._loads_us: dict[int, float] = {}
        self._through_hub: HubTrees | None = None
        # Another machine whose trees are as good here.
        self._model: TreePacking | None = None

    def let_links_carry_both_directions(self) -> None:
        """Make trees of the only root that carry sums to it as well as results from it."""
        self._packed = both_directions(self.network)
        if self.is_direct:
            self._through_hub = HubTrees(self.network, self._work.left(), self._work.over)

    def take_trees_of(self, other: TreePacking) -> None:
        """Take the trees of another machine where they are as good, so that they are made once."""
        if is_own_reverse(self.network, other.network):
            self._model = other

    @property
    def is_alike(self) -> bool:
        """True if the trees of another machine are taken."""
        return self._model is not None

    @cached_property
    def is_direct(self) -> bool:
        """True if trees meet in links only."""
        return shares_only_links(self.network)

    @property
    def packing(self) -> Packing:
        """The best fractional packing of spanning trees."""
        if self._model is not None:
            return self._model.packing
        if self._packing is None:
            with self._work.stage("packing"):
                # Trees are of no use before they are rounded and ordered.
                self._packing = pack_trees(self._packed, self._work.left(0.5).countdown())
        return self._packing

    def tree_set(self, parts: int) -> TreeSet:
        """Whole trees, so many for each root."""
        if self._model is not None:
            return self._model.tree_set(parts)
        if parts not in self._tree_sets:
            packing = self.packing
            with self._work.stage("rounding"):
                self._tree_sets[parts] = round_packing(self._packed, packing, parts, self._work.over)
        return self._tree_sets[parts]

    def grown(self, parts: int, seed: int = 0) -> TreeSet | None:
        """The lightest whole trees of a direct machine, so many for each root, if there are any and time for them; others by other seeds."""
        if self._model is not None:
            return self._model.grown(parts, seed)
        if (parts, seed) not in self._grown:
            with self._work.stage("growing"):
                self._grown[parts, seed] = self._grow(parts, seed)
        return self._grown[parts, seed]

    def _grow(self, parts: int, seed: int) -> TreeSet | None:
        if self._through_hub is not None:
            return self._through_hub.grown(parts, seed)
        return disjoint_trees(self.network, parts, self._work.over, seed)

    def least_load_us(self, parts: int | None = None) -> float:
        """Load of the fullest link or port in us per megabyte that trees cannot be below, or so many trees for each root cannot."""
        if self._through_hub is not None:
            return self._through_hub.least_load_us(parts)
        if parts is None:
            return self.packing.load_us
        if not self.is_direct:
            return least_load_us(self.network, self.packing.load_us, parts)
        if parts not in self._loads_us:
            self._loads_us[parts] = least_whole_load_us(self.network, parts)
        return self._loads_us[parts]
