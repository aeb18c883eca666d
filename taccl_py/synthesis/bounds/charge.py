"""Time that a load needs on several resources together: the one argument behind every bound on bandwidth.

By time T a resource cannot have been busy for more than ``T - idle``: its first message does not start before something can
be at the sender, its last one ends so early that what it carried still arrives and gets to who wants it, and alpha is
paid at least once. So if every schedule must satisfy ``sum of rate_r * beta_r * (data through r) >= amount`` (a cut; the
dual of a flow problem), then ``sum of rate_r * max(0, T - idle_r) >= amount``, and T is at least the solution of that
equation.

Alpha and latency of a resource's links are not simply added to the load: a port that is slower than its links hides their
alpha, and the link that is ready first need not be the one that delivers last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taccl_py.arrays import BoolArray, FloatArray, IntArray
from taccl_py.synthesis.bounds.bound import Bound
from taccl_py.synthesis.bounds.net import Net
from taccl_py.units import BYTES_PER_MB

# Share by which rounding must not lift a bound above what is true.
_ROUNDING = 1e-12


def least_time(rates: FloatArray, idle_us: FloatArray, amount: float) -> float:
    """Smallest T with ``sum of rates * max(0, T - idle_us) >= amount``; infinite if nothing ever serves.

    The sum is the largest of the same sums over some resources only, without the ``max``; those of the least idle ones
    are tried.
    """
    if amount <= 0:
        return 0.0
    serving = (rates > 0) & np.isfinite(idle_us)
    if not serving.any():
        return float("inf")
    order = np.argsort(idle_us[serving], kind="stable")
    rate, idle = rates[serving][order], idle_us[serving][order]
    times = (amount + np.cumsum(rate * idle)) / np.cumsum(rate)
    return float(times.min()) * (1 - _ROUNDING)


def idle_times(net: Net, head_us: FloatArray, tail_us: FloatArray) -> FloatArray:
    """Time within the makespan that each resource cannot use, [resource]; infinite if no link uses it.

    Parameters
    ----------
    net
        The machine.
    head_us
        Earliest time at which something that is of use elsewhere can be at a rank, [rank].
    tail_us
        Least time that something which has arrived at a rank still needs to who wants it, [rank].
    """
    start = np.full(len(net.alpha_us), np.inf)
    end = np.full(len(net.alpha_us), np.inf)
    np.minimum.at(start, net.use_resource, head_us[net.src[net.use_link]])
    np.minimum.at(end, net.use_resource, (net.latency_us + tail_us[net.dst])[net.use_link])
    return np.asarray(net.alpha_us + start + end, dtype=np.float64)


def crossing_idle_times(net: Net, near: BoolArray, is_sink: BoolArray, head_us: FloatArray) -> FloatArray:
    """Time within the makespan that each resource cannot use for what crosses a cut, [resource]; infinite if nothing does.

    One rank behind the cut that wants everything is singled out, the farthest one. Whatever it wants crosses the cut for the last
    time on the way to it, and after that stays behind the cut.

    Parameters
    ----------
    net
        The machine, in the direction in which data flows.
    near
        Ranks on the side that data comes from, [rank].
    is_sink
        Ranks that want everything, [rank]; one of them must be behind the cut.
    head_us
        See `idle_times`.
    """
    crossing, behind = near[net.src] & ~near[net.dst], (~near[net.src] & ~near[net.dst])[None, :]
    entries = np.zeros((1, net.num_ranks), dtype=bool)
    entries[0, net.dst[crossing]] = True
    far_us = net.quickest(entries, net.least_message_us, behind)[0]
    sink = np.zeros((1, net.num_ranks), dtype=bool)
    sink[0, int(np.where(is_sink & ~near & np.isfinite(far_us), far_us, -1.0).argmax())] = True
    tail_us = net.reversed().quickest(sink, net.least_message_us, behind)[0]
    uses = crossing[net.use_link]
    start, end = np.full(len(net.alpha_us), np.inf), np.full(len(net.alpha_us), np.inf)
    links, resources = net.use_link[uses], net.use_resource[uses]
    none = np.zeros(net.num_links)
    before_us, after_us = (net.latency_us, none) if net.is_reversed else (none, net.latency_us)
    np.minimum.at(start, resources, head_us[net.src[links]] + before_us[links])
    np.minimum.at(end, resources, after_us[links] + tail_us[net.dst[links]])
    return np.asarray(net.alpha_us + start + end, dtype=np.float64)


@dataclass(frozen=True)
class Charge:
    """A load that grows with the size, on resources that share it.

    Attributes
    ----------
    rates
        Weights of the resources: megabytes per microsecond for a cut.
    idle_us
        See `idle_times`, for the same resources.
    amount
        Weighted load for each megabyte of size.
    reason
        For people.
    """

    rates: FloatArray
    idle_us: FloatArray
    amount: float
    reason: str

    @staticmethod
    def cut(net: Net, resources: IntArray, idle_us: FloatArray, amount: float, reason: str) -> Charge:
        """Load of the resources of a cut through which ``amount`` megabytes must go for each megabyte of size."""
        return Charge(1 / net.beta_us_per_mb[resources], idle_us[resources], amount, reason)

    def at(self, size_bytes: float) -> Bound:
        """Bound for a size."""
        return Bound(least_time(self.rates, self.idle_us, self.amount * size_bytes / BYTES_PER_MB), self.reason)
