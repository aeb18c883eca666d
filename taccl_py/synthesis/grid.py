"""Integer time: solvers that count in whole units get every cost of a quotient on one grid.

Costs are rounded up, so whatever fits on the grid fits in real time; schedules are timed exactly afterwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from taccl_py.synthesis.quotient import Quotient
from taccl_py.tolerances import ROUNDED
from taccl_py.units import BYTES_PER_MB


@dataclass(frozen=True)
class Params:
    """Numbers of the integer time grid.

    Attributes
    ----------
    least_units
        Units of the smallest cost, at least, which then is rounded by up to 0.1 %. Guess.
    most_units
        Units of the whole horizon, at most, for which CP-SAT's integers and bounds are still quick. Guess.
    """

    least_units: int = 1000
    most_units: int = 20_000_000


PARAMS = Params()


@dataclass(frozen=True)
class TimeGrid:
    """Costs of a quotient in whole time units.

    Attributes
    ----------
    units_per_us
        Scale.
    alpha, beta
        What a message costs once, and at most for each of its chunks, on the slowest of its link and ports, [arc].
    latency
        Link's latency, [arc].
    occupancy, added
        For every arc, what one chunk occupies of each entry of ``quotient.resources``, and what each further chunk of the same
        message adds to that.
    """

    units_per_us: float
    alpha: tuple[int, ...]
    beta: tuple[int, ...]
    latency: tuple[int, ...]
    occupancy: tuple[tuple[int, ...], ...]
    added: tuple[tuple[int, ...], ...]

    def duration(self, arc: int, chunks: int = 1) -> int:
        """Units from the start of a message to its arrival."""
        return self.alpha[arc] + chunks * self.beta[arc] + self.latency[arc]

    def busy(self, arc: int, chunks: int) -> list[int]:
        """Units for which a message occupies each of the arc's resources."""
        return [one + (chunks - 1) * more for one, more in zip(self.occupancy[arc], self.added[arc], strict=True)]

    @staticmethod
    def of(quotient: Quotient, horizon_us: float) -> TimeGrid:
        """Choose the scale and round all costs up.

        Parameters
        ----------
        quotient
            The problem.
        horizon_us
            No time of interest is larger.
        """
        problem = quotient.problem
        topology, megabytes = problem.topology, problem.chunk_bytes / BYTES_PER_MB
        scale = _scale(quotient, horizon_us)

        def units(cost_us: float) -> int:
            return max(math.ceil(cost_us * scale - ROUNDED), int(cost_us > 0))

        alpha, beta, latency, occupancy, added = [], [], [], [], []
        for arc, index in enumerate(quotient.link.tolist()):
            latency.append(units(topology.links[index].latency_us))
            once, each = {}, {}
            for resource in topology.resources_of[index]:
                cost_alpha, cost_beta = topology.resource_cost[resource]
                orbit = int(quotient.resource_orbit[resource])
                once[orbit], each[orbit] = units(cost_alpha), units(cost_beta * megabytes)
            occupancy.append(tuple(once[orbit] + each[orbit] for orbit in quotient.resources[arc]))
            added.append(tuple(each[orbit] for orbit in quotient.resources[arc]))
            beta.append(max(added[-1]))
            alpha.append(max(occupancy[-1]) - beta[-1])
        return TimeGrid(scale, tuple(alpha), tuple(beta), tuple(latency), tuple(occupancy), tuple(added))


def _scale(quotient: Quotient, horizon_us: float) -> float:
    """A power of ten that resolves the smallest cost well and keeps the horizon within a solver's comfortable range."""
    problem = quotient.problem
    megabytes = problem.chunk_bytes / BYTES_PER_MB
    used = {r for link in set(quotient.link.tolist()) for r in problem.topology.resources_of[link]}
    costs = [alpha + beta * megabytes for alpha, beta in (problem.topology.resource_cost[r] for r in used)]
    smallest = min((cost for cost in costs if cost > 0), default=1.0)
    wanted = PARAMS.least_units / smallest
    most = PARAMS.most_units / horizon_us
    return 10.0 ** math.floor(math.log10(min(wanted, most)))
