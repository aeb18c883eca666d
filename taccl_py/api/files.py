"""Algorithm files that were lowered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from taccl_py.api.arguments import path_of
from taccl_py.demand import DataDemand
from taccl_py.jsonio import write_atomically
from taccl_py.lowering.plan import Plan
from taccl_py.lowering.program import Program
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Schedule


@dataclass(frozen=True)
class LoweredFile:
    """Verified algorithm file for a runtime.

    Attributes
    ----------
    text
        MSCCL XML, or the JSON of an MSCCL++ plan.
    schedule
        The schedule that it carries out, of a collective or of a demand.
    program
        The same as the text.
    runtime
        Name of the runtime.
    profile
        Runtime profile under which protocol and instances were chosen.
    instances
        Parts of every chunk, with threadblocks of their own.
    time_us
        Time on links and ports at the schedule's size, in microseconds.
    runtime_us
        Time under the runtime profile; None under the neutral one.
    """

    text: str
    schedule: Schedule | DemandSchedule
    program: Program | Plan
    runtime: str
    profile: RuntimeProfile
    instances: int
    time_us: float
    runtime_us: float | None

    @property
    def demand(self) -> DataDemand | None:
        """Demand that the program serves, with chunks as they were asked for; None of a collective."""
        return self.schedule.demand.joined() if isinstance(self.schedule, DemandSchedule) else None

    def write(self, path: str | Path) -> Path:
        """Write the text to a file, whole or not at all, and return its path.

        Raises
        ------
        InputError
            If it cannot be written.
        """
        write_atomically(path_of(path), self.text)
        return path_of(path)
