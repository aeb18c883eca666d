"""Files and logs of a calibration that never ran: the times are those that a profile predicts."""

from dataclasses import replace

from taccl_py.collective import Kind
from taccl_py.lowering.msccl_xml import emit_xml
from taccl_py.lowering.program import Protocol
from taccl_py.measure.runtime_programs import all_pairs_allgather, all_pairs_allreduce, ring_allgather
from taccl_py.profiles.catalog import load_profile
from taccl_py.runtimes import RCCL
from taccl_py.simulate.runtime_replay import RuntimeReplay
from taccl_py.topology.catalog import load_topology

MACHINE, RANKS = "mi300x", 8
SIZES = tuple(4096 << shift for shift in range(0, 13, 3))
NAMES = {Kind.ALLGATHER: "all_gather", Kind.ALLREDUCE: "all_reduce"}
MAKERS = {
    "pairs": lambda: all_pairs_allgather(RANKS, 1, Protocol.LL),
    "ring": lambda: ring_allgather(RANKS, 4, 1, Protocol.LL),
    "sums": lambda: all_pairs_allreduce(RANKS, 1, Protocol.LL),
}


def truth(**costs):
    """The shipped profile with other costs of LL."""
    profile = load_profile("rccl-mi300x")
    return replace(profile, protocols={**profile.protocols, "LL": replace(profile.protocols["LL"], **costs)})


def log_text(program, profile, *, processes=RANKS, extra_us=0.0, sizes=SIZES):
    """Log of rccl-tests of a program under a profile, out of place three times as slow."""
    replay = RuntimeReplay(program, load_topology(MACHINE), profile)
    name = NAMES[program.kind]
    lines = [f"# Collective test starting: {name}_perf", "# Using devices"]
    lines += [
        f"#  Rank {rank:2d} Group  0 Pid {4000 + rank * processes // RANKS:6d} on node device {rank:2d} [0000:0{rank}:00] AMD Instinct MI300X"
        for rank in range(RANKS)
    ]
    lines += [
        "#                                                              out-of-place                       in-place",
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
    ]
    for size in sizes:
        time_us = replay.time_us(size) + extra_us
        sides = [f"{t:9.2f} {size / t / 1000:7.2f} {size / t / 1000:7.2f}      0" for t in (3 * time_us, time_us)]
        lines.append(f"{size:12d} {size // 4:13d}     float    none      -1 {' '.join(sides)}")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", ""])


def write_calibration(folder, profile, names=tuple(MAKERS), **kwargs):
    """Write NAME.xml and NAME.log of some programs."""
    for name in names:
        program = MAKERS[name]()
        (folder / f"{name}.xml").write_text(emit_xml(program, RCCL), encoding="utf-8")
        (folder / f"{name}.log").write_text(log_text(program, profile, **kwargs), encoding="utf-8")
