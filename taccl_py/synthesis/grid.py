"""Integer time: solvers that count in whole units get every cost of a quotient on one grid.

Costs are rounded up, so whatever fits on the grid fits in real time; schedules are timed exactly afterwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from taccl_py.synthesis.quotient import Quotient
from taccl_py.units import BYTES_PER_MB

_UNITS_PER_SMALLEST_COST = 1000
_LONGEST_HORIZON = 20_000_000


@dataclass(frozen=True)
class Grid:
    """Costs of a quotient in whole time units.

    Attributes
    ----------
    units_per_us
        Scale.
    alpha, beta
        Link's cost per message and per chunk, [arc].
    latency
        Link's latency, [arc].
    wait
        What the slowest port adds to the time that the link itself needs for one chunk, [arc].
    occupancy
        For every arc, what one chunk occupies of each entry of ``quotient.resources``.
    """

    units_per_us: float
    alpha: tuple[int, ...]
    beta: tuple[int, ...]
    latency: tuple[int, ...]
    wait: tuple[int, ...]
    occupancy: tuple[tuple[int, ...], ...]

    def duration(self, arc: int) -> int:
        """Units from the start of a message of one chunk to its arrival."""
        return self.alpha[arc] + self.beta[arc] + self.wait[arc] + self.latency[arc]

    @staticmethod
    def of(quotient: Quotient, horizon_us: float) -> Grid:
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
            return max(math.ceil(cost_us * scale - 1e-6), int(cost_us > 0))

        alpha, beta, latency, wait, occupancy = [], [], [], [], []
        for arc, index in enumerate(quotient.link.tolist()):
            link = topology.links[index]
            alpha.append(units(link.alpha_us))
            beta.append(units(link.beta_us_per_mb * megabytes))
            latency.append(units(link.latency_us))
            by_orbit = {}
            for resource in topology.resources_of[index]:
                cost_alpha, cost_beta = topology.resource_cost[resource]
                by_orbit[int(quotient.resource_orbit[resource])] = units(cost_alpha) + units(cost_beta * megabytes)
            occupancy.append(tuple(by_orbit[orbit] for orbit in quotient.resources[arc]))
            wait.append(max(0, max(occupancy[-1]) - alpha[-1] - beta[-1]))
        return Grid(scale, tuple(alpha), tuple(beta), tuple(latency), tuple(wait), tuple(occupancy))


def _scale(quotient: Quotient, horizon_us: float) -> float:
    """A power of ten that resolves the smallest cost well and keeps the horizon within a solver's comfortable range."""
    problem = quotient.problem
    megabytes = problem.chunk_bytes / BYTES_PER_MB
    used = {r for link in set(quotient.link.tolist()) for r in problem.topology.resources_of[link]}
    costs = [alpha + beta * megabytes for alpha, beta in (problem.topology.resource_cost[r] for r in used)]
    smallest = min((cost for cost in costs if cost > 0), default=1.0)
    wanted = _UNITS_PER_SMALLEST_COST / smallest
    most = _LONGEST_HORIZON / horizon_us
    return 10.0 ** math.floor(math.log10(min(wanted, most)))
