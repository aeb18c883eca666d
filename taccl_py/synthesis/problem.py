"""Problem: everything that an engine needs, built once, read-only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from taccl_py.arrays import BoolArray, FloatArray
from taccl_py.collective import Collective
from taccl_py.errors import InputError
from taccl_py.runtimes import MAX_COUNT
from taccl_py.sketch.model import Sketch
from taccl_py.synthesis.restrict import find_allowed_links
from taccl_py.synthesis.symmetry import Generator, make_generator
from taccl_py.synthesis.traffic import ChunkTraffic
from taccl_py.topology.model import Topology


@dataclass(frozen=True)
class Params:
    """Numbers of problems.

    Attributes
    ----------
    least_neighbour_part
        Part of the neighbouring ranks that a symmetry must leave neighbours to keep the order of chunks, which messages
        of several need. Guess.
    """

    least_neighbour_part: float = 0.75


PARAMS = Params()


@dataclass(frozen=True)
class Problem:
    """Chunks to be copied on a machine, with a sketch's restrictions.

    Attributes
    ----------
    topology, traffic
        The machine, and what has to be copied: a collective that is not combining, or pieces of a demand.
    sketch
        Hints, or None.
    chunk_bytes
        Size of one chunk.
    permitted
        Whether topology and sketch let a chunk use a link, [chunk, link].
    allowed
        Of these, the links that engines consider.
    generators
        Verified symmetry.
    narrowed
        Whether links that could be of use are not among ``allowed``.
    message_chunks
        Chunks that one message can carry in the runtime.
    """

    topology: Topology
    traffic: ChunkTraffic
    sketch: Sketch | None
    chunk_bytes: float
    permitted: BoolArray
    allowed: BoolArray
    generators: tuple[Generator, ...]
    narrowed: bool
    message_chunks: int = MAX_COUNT

    @property
    def collective(self) -> Collective:
        """The collective.

        Raises
        ------
        ValueError
            If the traffic is none.
        """
        if not isinstance(self.traffic, Collective):
            raise ValueError("pieces of a demand are no collective")
        return self.traffic

    @staticmethod
    def build(
        topology: Topology,
        traffic: ChunkTraffic,
        sketch: Sketch | None,
        chunk_bytes: float,
        most_hops: int | None = None,
    ) -> Problem:
        """Apply the sketch and verify its symmetry; without a sketch the machine's own symmetry is used where it holds for a collective.

        Parameters
        ----------
        topology, traffic, sketch, chunk_bytes
            See the attributes.
        most_hops
            Hops that a chunk can make at most, if that is known; then no others are left out.

        Raises
        ------
        InputError
            If the sketch contradicts the topology.
        Infeasible
            If some chunk has no path left.
        """
        if sketch is not None:
            sketch.check_fits(topology)
        reach = find_allowed_links(topology, traffic, sketch, most_hops)
        generators = []
        wanted = sketch.generators(topology) if sketch else tuple(("", image) for image in topology.symmetry)
        for field, image in wanted:
            if not isinstance(traffic, Collective):
                break
            generator = make_generator(topology, traffic, reach.permitted, image)
            if isinstance(generator, Generator):
                generators.append(generator)
            elif sketch is not None and generator:
                raise InputError(
                    f"is not a symmetry of {topology.name}: {generator}; remove it or correct it",
                    path=sketch.source or f"sketch {sketch.name}",
                    field=sketch.word(field),
                )
        for mask in (reach.permitted, reach.allowed):
            mask.setflags(write=False)
        return Problem(
            topology, traffic, sketch, chunk_bytes, reach.permitted, reach.allowed, tuple(generators), reach.narrowed
        )  # fmt: skip

    def with_order_kept(self) -> Problem:
        """Return the problem with only those generators that keep most neighbouring ranks neighbours, in order.

        Chunks of neighbouring ranks are neighbours in the buffers; a symmetry that scatters them (exchanging pairs, say) rules
        out messages of several chunks. A sketch's symmetry is the user's and stays.
        """
        if self.sketch is not None:
            return self
        kept = tuple(generator for generator in self.generators if keeps_order(generator.rank))
        return self if kept == self.generators else replace(self, generators=kept)

    def without_symmetry(self) -> Problem:
        """Return the same problem without its symmetry."""
        return replace(self, generators=())

    def goes_first(self, chunk: int, link: int) -> bool:
        """True if the sketch lets the chunk leave before others: the sender's own, on a link between nodes."""
        if self.sketch is None or not self.sketch.own_first:
            return False
        src, dst = self.topology.links[link].src, self.topology.links[link].dst
        return self.collective.source[chunk] == src and self.topology.node_of[src] != self.topology.node_of[dst]

    def amounts_by_source(self, amount: float) -> tuple[FloatArray, BoolArray]:
        """Amounts that ranks want from others where each chunk is so much for one rank, [source, rank], and links for them, [source, link]."""
        ranks, source = self.topology.num_ranks, np.array(self.collective.source, dtype=np.int64)
        wanted, permitted = np.zeros((ranks, ranks)), np.zeros((ranks, len(self.topology.links)), dtype=bool)
        np.add.at(wanted, (source, np.array([sink for (sink, *_) in self.collective.wanted], dtype=np.int64)), amount)
        np.logical_or.at(permitted, source, self.permitted)
        return wanted, permitted

    def message_us(self, link: int, chunks: int = 1) -> float:
        """Time of a message of so many chunks on a link."""
        return self.topology.message_us(link, chunks * self.chunk_bytes)


def keeps_order(image: tuple[int, ...]) -> bool:
    """True if a renaming of ranks leaves most neighbouring ranks neighbours, in order."""
    kept = sum(two == one + 1 for one, two in pairwise(image))
    return kept >= PARAMS.least_neighbour_part * (len(image) - 1)
