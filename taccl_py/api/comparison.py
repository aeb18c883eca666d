"""Our algorithms beside those of NCCL."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

from taccl_py.api.arguments import kind_of, machine_of, names_arguments, range_of
from taccl_py.api.policy import AUTO, COMPARE_LIMIT_S, budget, runtime_named
from taccl_py.baselines.compare import BaselineComparison, Given, Tuned, compare_sizes
from taccl_py.collective import Kind
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.resolve import Request, resolve_machine
from taccl_py.profiles.catalog import select_profile
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Events, Options
from taccl_py.topology.model import Topology


@names_arguments
def compare(  # noqa: PLR0913 - keywords with defaults, as the command's options
    machine: Topology | str | Path,
    kind: Kind | str,
    sizes: str | tuple[int | str, int | str] = "1KiB:4GiB",
    *,
    root: int = 0,
    sketch: str = "",
    effort: str | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    runtime: str = AUTO,
    runtime_profile: str = AUTO,
    with_taccl: bool = False,
    events: Events | None = None,
    stop: threading.Event | None = None,
) -> BaselineComparison:
    """Compare our algorithms with NCCL's for every size of a range, as ``taccl compare``.

    Parameters
    ----------
    machine, kind, root, sketch, seed, runtime, runtime_profile, events, stop
        As for `synthesize`.
    sizes
        Range such as ``1KiB:1GiB``, or the smallest and the largest size, both included.
    effort, time_limit
        As for `synthesize`, of the search for ours and of that for the baselines; normal takes 100 seconds at most.
    with_taccl
        Whether TACCL's method is tried too, which takes as long again.

    Returns
    -------
    BaselineComparison
        ``rows``, one for each size, with predicted times in microseconds: ours, every baseline, what NCCL would choose, and the bound.

    Raises
    ------
    InputError
        If an argument or a file is wrong.
    LimitReached
        If no schedule was found in time.
    Interrupted
        If it was stopped before there was anything to compare.
    """
    limits = Limits(seed=seed, stop=stop or threading.Event())
    limits = budget(limits, COMPARE_LIMIT_S, effort=effort, time_limit=time_limit)
    request = Request(
        topology=machine_of(machine), kind=kind_of(kind), sketch=sketch, root=root, engine=AUTO, options=Options(limits=limits)
    )  # fmt: skip
    topology = resolve_machine(request)
    target = runtime_named(runtime, topology)
    profile = select_profile(runtime_profile, target.name, topology).profile
    return compare_sizes(
        replace(request, profile=profile), range_of(sizes), LoweringOptions(target), Tuned(), events or Events(),
        Given(with_taccl),
    )  # fmt: skip
