"""Plan of a calibration: the MSCCL XML files whose logs identify a runtime profile, and the commands that make the logs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from taccl_py.collective import Kind
from taccl_py.errors import InputError, require_verdict
from taccl_py.lowering.msccl_xml import emit_xml, legacy_config
from taccl_py.lowering.program import Program, Protocol, chunks_of_size
from taccl_py.measure.runtime_programs import (
    all_pairs_allgather,
    all_pairs_allreduce,
    in_order,
    ring_allgather,
    ring_allreduce,
)
from taccl_py.runtimes import LEGACY, LEGACY_CONFIG, RCCL, Runtime, loading_variables
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.model import Topology
from taccl_py.verify.msccl import verify_program

_RING_CHANNELS = 8
# Ranks up to which threadblocks have the steps for all pairs and for a ring, and the size for which links of a ring are compared.
_MOST_PAIRED, _MOST_IN_RING, _RING_BYTES = 16, 22, 1e6
_FIRST_BYTES, _LAST_BYTES, _FACTOR = 4096, 1 << 28, 4
_ELEMENT_BYTES = 16  # chunks are multiples of it, so that every type divides them
_PROGRAMS = {Kind.ALLGATHER: "all_gather_perf", Kind.ALLREDUCE: "all_reduce_perf"}
SCRIPT = "run.sh"


@dataclass(frozen=True)
class CalibrationPlan:
    """Files of a calibration.

    Attributes
    ----------
    texts
        Text by path in the folder of the plan: an XML file in a folder of its own for each run, and a script.
    runs
        Names of the runs, in order.
    fit_command
        Command that reads the logs, for the folder of the plan.
    """

    texts: Mapping[str, str]
    runs: tuple[str, ...]
    fit_command: str


def plan_calibration(topology: Topology, runtime: Runtime, machine: str) -> CalibrationPlan:
    """Make the files for a machine: for each protocol an all-pairs AllGather, a ring AllGather and an all-pairs AllReduce.

    Where two ranks have no link, or there are too many ranks for all pairs, the files are two AllGathers and an AllReduce around a ring
    of links.

    Parameters
    ----------
    topology
        The machine.
    runtime
        The runtime.
    machine
        Options of ``taccl`` that name the machine, for the fit.

    Raises
    ------
    InputError
        If there are too many ranks, or no ring of links joins them.
    """
    programs = [_limited(program, runtime) for protocol in Protocol for program in _programs(topology, protocol)]
    names = [program.name for program in programs]
    texts = {f"{program.name}/{program.name}.xml": emit_xml(program, runtime) for program in programs}
    if runtime.name == LEGACY.name:
        texts |= {
            f"{program.name}/{LEGACY_CONFIG}": legacy_config({f"{program.name}/{program.name}.xml": program})
            for program in programs
        }
    fit = f"taccl runtime fit *.log --xml */*.xml {machine} --runtime {runtime.name} -o profile.json"
    texts[SCRIPT] = _script(programs, runtime, topology, fit)
    return CalibrationPlan(MappingProxyType(texts), tuple(names), fit)


def _programs(topology: Topology, protocol: Protocol) -> tuple[Program, ...]:
    """The three programs of a protocol."""
    ranks = topology.num_ranks
    channels = min(ranks, _RING_CHANNELS)
    if ranks <= _MOST_PAIRED and len(topology.links_between) == ranks * (ranks - 1):
        return (
            all_pairs_allgather(ranks, 1, protocol),
            ring_allgather(ranks, channels, 1, protocol),
            all_pairs_allreduce(ranks, 1, protocol),
        )
    ring = (
        TemplateSite(topology, _RING_BYTES).cycle(range(ranks), [0] * topology.num_resources)
        if ranks <= _MOST_IN_RING
        else None
    )
    if ring is None:
        why = (
            f"has {ranks} ranks, more than {_MOST_IN_RING}"
            if ranks > _MOST_IN_RING
            else "has no ring of links through all ranks"
        )
        raise InputError(
            f"{topology.name} {why}, which the files of a plan need; fit logs of your own files instead (taccl runtime fit LOG --xml FILE)"
        )
    around = (
        ring_allgather(ranks, 1, 1, protocol),
        ring_allgather(ranks, channels, 1, protocol),
        ring_allreduce(ranks, protocol),
    )
    return tuple(in_order(program, ring) for program in around)


def _limited(program: Program, runtime: Runtime) -> Program:
    """The program for the sizes that are measured and at which it is safe."""
    first = _first_bytes(program)
    program = replace(program, max_bytes=_largest(first, _LAST_BYTES))
    facts = verify_program(emit_xml(program, runtime), runtime, kind=program.kind).facts
    if facts is not None and facts.safe_max_bytes:
        program = replace(program, max_bytes=_largest(first, min(_LAST_BYTES, facts.safe_max_bytes)))
    verdict = verify_program(emit_xml(program, runtime), runtime, kind=program.kind)
    require_verdict(program.name, verdict.violations, verdict.unsupported)
    return program


def _first_bytes(program: Program) -> int:
    unit = chunks_of_size(program) * _ELEMENT_BYTES
    return unit * math.ceil(_FIRST_BYTES / unit)


def _largest(first: int, most: int) -> int:
    """Largest of the sizes that are measured."""
    while first * _FACTOR <= most:
        first *= _FACTOR
    return first


def _script(programs: list[Program], runtime: Runtime, topology: Topology, fit: str) -> str:
    """The commands, for people who read them and for a shell."""
    tests = "rccl-tests" if runtime.name == RCCL.name else "nccl-tests"
    variables = loading_variables(runtime, "$PWD/$1") | (
        {"NCCL_ALGO": "MSCCL,RING,TREE"} if runtime.name == LEGACY.name else {}
    )
    passed = " ".join(f"-x {name}" for name in variables)
    return "\n".join([
        "#!/bin/sh",
        f"# Measures what taccl runtime fit needs, on the {topology.num_ranks} GPUs of {topology.name} under {runtime.title}. Idle GPUs, please.",
        f"# TESTS is the folder with the programs of {tests}; LAUNCH starts them with one process for each GPU (add your host file).",
        "# All ranks must see this folder. In a log the times of our file are those in place; NCCL_DEBUG=INFO says which file was loaded.",
        "set -eu",
        'cd "$(dirname "$0")"',
        "TESTS=${TESTS:-.}",
        f'LAUNCH=${{LAUNCH:-"mpirun -np {topology.num_ranks} {passed}"}}',
        "",
        "run() {  # name, program, smallest and largest size in bytes",
        *[f'  export {name}="{value}"' if "$" in value else f"  export {name}={value}" for name, value in variables.items()],
        f'  $LAUNCH "$TESTS/$2" -b "$3" -e "$4" -f {_FACTOR} -g 1 -w 20 -n 100 > "$1.log"',
        "}",
        "",
        *[
            f"run {one.name} {_PROGRAMS[one.known_kind]} {_first_bytes(one)} {one.max_bytes}" for one in programs
        ],
        "",
        "# Then, here:",
        f"# {fit}",
        "",
    ])  # fmt: skip
