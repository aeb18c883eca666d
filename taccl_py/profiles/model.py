"""Runtime profile: what a runtime's protocols, threadblocks and launch cost on one kind of GPU.

A topology says what wires can do, whoever drives them. A profile says who drives them: the launch of a kernel, the fixed cost
of an operation of a protocol, what one threadblock moves, what a flag takes to be seen by the other side. The terms and how
they add up are described in ``taccl_py/profiles/README.md``; `taccl_py.simulate.runtime_replay` applies them.

The *neutral* profile has no costs and no limits: times under it are those of the topology alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from taccl_py.errors import InputError
from taccl_py.runtimes import RUNTIMES

NEUTRAL = "neutral"
UNLIMITED = math.inf


@dataclass(frozen=True, slots=True)
class Figure:
    """One value of a profile with its origin.

    Attributes
    ----------
    value
        In the unit that its name says; infinite for a rate without a limit.
    source
        Where it comes from.
    measured
        Whether it was measured on such a GPU under such a runtime.
    """

    value: float
    source: str
    measured: bool


@dataclass(frozen=True, slots=True)
class ProtocolCosts:
    """Costs of one protocol.

    Attributes
    ----------
    launch_us
        From the call to the first operation, and from the last one to the end of the call.
    op_us
        Fixed cost of an operation that sends, receives or copies.
    hop_near_us, hop_far_us
        From the end of a send until the other side sees the data, inside a node and over NICs.
    tb_gbps
        Rate at which one threadblock sends, receives, or does both in a fused step.
    copy_gbps
        Rate at which one threadblock copies in local memory.
    reduce_us, reduce_gbps
        Fixed cost of a local sum, and rate at which one threadblock reads its sources.
    wire
        Bytes on the wire for a byte of data.
    tail
        Part of an operation's bytes that a receiver still copies after the last of them has arrived.
    payload_bytes
        Most bytes that one operation carries; infinite without a limit.
    slots
        Operations that can be outstanding on a connection; infinite without a limit.
    threads
        Threads of a threadblock; 0 if not stated.
    """

    launch_us: float = 0.0
    op_us: float = 0.0
    hop_near_us: float = 0.0
    hop_far_us: float = 0.0
    tb_gbps: float = UNLIMITED
    copy_gbps: float = UNLIMITED
    reduce_us: float = 0.0
    reduce_gbps: float = UNLIMITED
    wire: float = 1.0
    tail: float = 0.0
    payload_bytes: float = UNLIMITED
    slots: float = UNLIMITED
    threads: int = 0

    @property
    def is_neutral(self) -> bool:
        """True if the costs add nothing to the times of the topology."""
        return all(getattr(self, name) == getattr(_FREE, name) for name in COST_FIELDS)


# Fields that cost time; the others are limits of the runtime, which programs keep under any profile.
COST_FIELDS = tuple(
    each.name for each in fields(ProtocolCosts) if each.name not in ("payload_bytes", "slots", "threads")
)
PROTOCOL_FIELDS = tuple(each.name for each in fields(ProtocolCosts))
_FREE = ProtocolCosts()


@dataclass(frozen=True, slots=True)
class UsableShare:
    """Usable share of a medium's bandwidth.

    Attributes
    ----------
    value
        Largest rate that is reached, over the rate `of_gbps`.
    of_gbps
        The rate that `value` is a share of: of one link (xGMI), of all links of a GPU in one direction (NVLink), of a NIC; 0
        if it is a share of whatever the topology says.
    """

    value: float
    of_gbps: float = 0.0

    def factor(self, rate_gbps: float) -> float:
        """Usable part of a topology's rate, which may be a nominal one or one that was measured and needs no discount."""
        if not self.of_gbps or rate_gbps <= 0:
            return self.value
        return min(1.0, self.value * self.of_gbps / rate_gbps)


@dataclass(frozen=True)
class RuntimeProfile:
    """A runtime on a kind of GPU.

    Attributes
    ----------
    name, title
        Name for options and files; name for people.
    runtime
        Name of the runtime: ``executor``, ``rccl``, ``legacy``, ``mscclpp``; empty in the neutral profile.
    gpu
        Model of the GPU, as topologies name it; empty in the neutral profile.
    source
        Where the figures come from, in a sentence.
    protocols
        Costs by name of protocol.
    shares
        Usable shares by medium: ``nvlink``, ``xgmi``, ``pcie``, ``nic``, and ``nvls`` for what NVLink SHARP reaches of NVLink; for
        NCCL's algorithms also ``nvlstree``, what NVLSTree on several nodes reaches of ``nvls``, and fabrics in place of ``nic``.
    nic_message_us
        Time that a message occupies a NIC beside its bytes.
    fabric_us
        Additional hop of a network by its name, such as ``efa``.
    gpu_gbps
        Most that one GPU sends to all others of its node together, whatever its links could carry.
    nvls_us
        Additional time of a call of NCCL's NVLS and NVLSTree.
    most_threadblocks
        Most threadblocks of a GPU that can work at once.
    launch_per_gpu_us
        Additional launch for each further GPU that one process drives.
    figures
        Every value with its origin, by its place in the file, such as ``protocols/LL/op_us``.
    """

    name: str
    title: str
    runtime: str
    gpu: str
    source: str
    protocols: Mapping[str, ProtocolCosts]
    shares: Mapping[str, UsableShare] = field(default_factory=dict)
    nic_message_us: float = 0.0
    fabric_us: Mapping[str, float] = field(default_factory=dict)
    gpu_gbps: float = UNLIMITED
    most_threadblocks: float = UNLIMITED
    launch_per_gpu_us: float = 0.0
    nvls_us: float = 0.0
    figures: Mapping[str, Figure] = field(default_factory=dict, compare=False)

    @property
    def is_neutral(self) -> bool:
        """True if times under it are those of the topology alone."""
        return (
            all(costs.is_neutral for costs in self.protocols.values())
            and all(share.factor(0) == 1 for share in self.shares.values())
            and not self.nic_message_us
            and self.gpu_gbps == UNLIMITED
            and not any(self.fabric_us.values())
        )

    @property
    def adds_apart(self) -> bool:
        """True if its runtime adds up what has come by a step of its own, and never as it comes."""
        return self.runtime in RUNTIMES and not RUNTIMES[self.runtime].fused

    def costs_of(self, protocol: str) -> ProtocolCosts:
        """Costs of a protocol.

        Raises
        ------
        InputError
            If the profile does not have it.
        """
        costs = self.protocols.get(protocol)
        if costs is None:
            known = ", ".join(self.protocols) or "none"
            raise InputError(
                f"runtime profile {self.name} has no protocol {protocol}, only {known}; name another profile",
                field="protocols",
            )
        return costs

    @property
    def is_measured(self) -> bool:
        """True if the costs of all protocols were measured on this kind of GPU under this runtime."""
        costs = [figure for place, figure in self.figures.items() if place.rpartition("/")[2] in COST_FIELDS]
        return bool(costs) and all(figure.measured for figure in costs)

    @property
    def evidence(self) -> str:
        """``measured``, ``partly measured`` or ``not measured``, of the costs of its protocols."""
        if self.is_measured:
            return "measured"
        costs = [figure for place, figure in self.figures.items() if place.rpartition("/")[2] in COST_FIELDS]
        return "partly measured" if any(figure.measured for figure in costs) else "not measured"

    @property
    def label(self) -> str:
        """Name, and whether it was measured, for tables."""
        return f"{self.name} ({'links and ports alone' if self.is_neutral else self.evidence})"
