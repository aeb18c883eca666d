"""Problem: everything that an engine needs, built once, read-only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taccl_py.collective import Collective
from taccl_py.errors import InputError
from taccl_py.sketch.model import Sketch
from taccl_py.synthesis.restrict import allowed_links
from taccl_py.synthesis.symmetry import Generator, make_generator
from taccl_py.topology.model import Topology


@dataclass(frozen=True)
class Problem:
    """A routed collective on a machine with a sketch's restrictions.

    Attributes
    ----------
    topology, collective
        The machine, and a collective that is not combining.
    sketch
        Hints, or None.
    chunk_bytes
        Size of one chunk.
    allowed
        Whether a chunk may use a link, [chunk, link].
    generators
        Verified symmetry.
    """

    topology: Topology
    collective: Collective
    sketch: Sketch | None
    chunk_bytes: float
    allowed: NDArray[np.bool_]
    generators: tuple[Generator, ...]

    @staticmethod
    def build(topology: Topology, collective: Collective, sketch: Sketch | None, chunk_bytes: float) -> Problem:
        """Apply the sketch and verify its symmetry; without a sketch the machine's own symmetry is used where it holds.

        Raises
        ------
        InputError
            If the sketch contradicts the topology.
        Infeasible
            If some chunk has no way left.
        """
        if sketch is not None:
            sketch.check_fits(topology)
        allowed = allowed_links(topology, collective, sketch)
        generators = []
        wanted = sketch.generators(topology) if sketch else tuple(("", image) for image in topology.symmetry)
        for field, image in wanted:
            generator = make_generator(topology, collective, allowed, image)
            if isinstance(generator, Generator):
                generators.append(generator)
            elif sketch is not None and generator:
                raise InputError(
                    f"is not a symmetry of {topology.name}: {generator}; remove it or correct it",
                    path=sketch.source or f"sketch {sketch.name}",
                    field=field,
                )
        allowed.setflags(write=False)
        return Problem(topology, collective, sketch, chunk_bytes, allowed, tuple(generators))

    def without_symmetry(self) -> Problem:
        """Return the same problem without its symmetry."""
        return Problem(self.topology, self.collective, self.sketch, self.chunk_bytes, self.allowed, ())

    def message_us(self, link: int, chunks: int = 1) -> float:
        """Time of a message of so many chunks on a link."""
        return self.topology.message_us(link, chunks * self.chunk_bytes)
