"""Cases: instances of a campaign, and the key under which a result is kept.

The key is a digest of everything that a result depends on: the instance, the machine and the sketch with their figures, the
code, and the versions of the solvers. So a result is up to date if there is one under its key, and out of date if there is not.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass

from taccl_py.collective import Kind
from taccl_py.jsonio import canonical_json
from taccl_py.pipeline.resolve import Request
from taccl_py.sketch.files import sketch_to_json
from taccl_py.sketch.machine import load_machine
from taccl_py.solvers.limits import Limits
from taccl_py.solvers.versions import code_digest
from taccl_py.synthesis.engine import Options
from taccl_py.topology.files import topology_to_json


@dataclass(frozen=True, slots=True)
class Case:
    """One instance.

    Attributes
    ----------
    name
        Unique in its campaign; what people and baselines call it.
    topology, sketch
        Shipped name, formula or file; the sketch may be empty.
    kind
        Collective.
    engine, solver
        Engine with its options. Its search ends by its own limits, which do not depend on the clock.
    runtime
        For which its program is.
    nodes, size_bytes, chunks_per_rank, ranks
        None as on the command line.
    root, seed
        Numbers as on the command line.
    """

    name: str
    topology: str
    kind: Kind
    engine: str
    solver: str = "auto"
    sketch: str = ""
    runtime: str = "executor"
    nodes: int | None = None
    size_bytes: int | None = None
    chunks_per_rank: int | None = None
    ranks: tuple[int, ...] | None = None
    root: int = 0
    seed: int = 0

    def request(self, limits: Limits) -> Request:
        """Request to the pipeline."""
        return Request(
            topology=self.topology,
            kind=self.kind,
            sketch=self.sketch,
            nodes=self.nodes,
            size_bytes=self.size_bytes,
            ranks=self.ranks,
            root=self.root,
            chunks_per_rank=self.chunks_per_rank,
            engine=self.engine,
            options=Options(self.solver, limits),
        )

    def key(self) -> str:
        """Digest of all that its result depends on.

        Raises
        ------
        InputError
            If topology or sketch is wrong.
        """
        machine = load_machine(self.topology, self.sketch, self.nodes)
        fields = asdict(self)
        # The name is for people, and where the files lie makes no difference.
        for field in ("name", "topology", "sketch"):
            del fields[field]
        content = {
            **fields,
            "machine": topology_to_json(machine.topology),
            "hints": sketch_to_json(machine.sketch) if machine.sketch is not None else None,
            "code": code_digest(),
        }
        return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:32]
