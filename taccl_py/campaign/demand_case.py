"""Cases that are demands: a file, or a formula with its counts or its skew."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from taccl_py.campaign.case import Case
from taccl_py.collective import Kind
from taccl_py.demand import DataDemand
from taccl_py.demand.files import write_demand
from taccl_py.demand.formula import by_counts, by_skew, dtype_of, read_rows_of
from taccl_py.demand.moe import ExpertCall
from taccl_py.demand.msccl_collective import read_demand_file
from taccl_py.demand.variable import DEFAULT_SIZE, Variable
from taccl_py.errors import InputError
from taccl_py.jsonio import canonical_json
from taccl_py.pipeline.resolve import Request, damaged_machine
from taccl_py.solvers.versions import code_digest
from taccl_py.topology.files import topology_to_json
from taccl_py.topology.model import Topology
from taccl_py.units import parse_size


@dataclass(frozen=True, slots=True)
class DemandCase:
    """One instance whose question is a demand.

    Attributes
    ----------
    name
        Unique in its campaign; what people and baselines call it.
    topology, nodes, ranks
        Machine, as on the command line.
    variable, file
        Formula, or demand file; one of them.
    counts, skew
        Of a formula, its file of counts or a skew such as ``zipf:0.5``; one of them is empty.
    dtype
        Type of a formula's elements; None for its default.
    size_bytes, seed
        Of a skew.
    experts
        Exchange of a mixture of experts, in place of a formula or a file.
    """

    name: str
    topology: str
    variable: Variable | None = None
    file: str = ""
    counts: str = ""
    skew: str = ""
    dtype: str | None = None
    nodes: int | None = None
    ranks: tuple[int, ...] | None = None
    size_bytes: int | None = None
    seed: int = 0
    experts: ExpertCall | None = None

    def machine(self) -> Topology:
        """Machine as its process group sees it.

        Raises
        ------
        InputError
            If there is no such machine.
        """
        return damaged_machine(Request(topology=self.topology, kind=Kind.ALLTOALL, nodes=self.nodes, ranks=self.ranks))[
            0
        ]

    def demand(self, num_ranks: int) -> DataDemand:
        """Demand on so many ranks.

        Raises
        ------
        InputError
            If a file is wrong, or is not for so many ranks.
        """
        if self.experts is not None:
            return self.experts.demand(num_ranks)
        if self.variable is None:
            return read_demand_file(Path(self.file), self.size_bytes, self.dtype)
        dtype = dtype_of(self.variable, self.dtype)
        if not self.counts:
            size = parse_size(DEFAULT_SIZE) if self.size_bytes is None else self.size_bytes
            return by_skew(self.variable, self.skew, size, num_ranks, dtype, self.seed)
        try:
            return by_counts(self.variable, read_rows_of(self.variable, Path(self.counts)), num_ranks, dtype)
        except InputError as error:
            if error.path is not None:
                raise
            raise InputError(error.what, path=self.counts, field=error.field) from None

    def key(self) -> str:
        """Digest of all that its result depends on.

        Raises
        ------
        InputError
            If machine or demand is wrong.
        """
        machine = self.machine()
        content = {
            "machine": topology_to_json(machine),
            "demand": write_demand(self.demand(machine.num_ranks)),
            "seed": self.seed,
            "code": code_digest(),
        }
        return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:32]


AnyCase = Case | DemandCase
