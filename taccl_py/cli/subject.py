"""Files that commands look into: a schedule, which carries its machine; an XML file or a plan with the machine's options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from taccl_py.cli.options import chosen_runtime, runtime_option
from taccl_py.errors import InputError, InvalidArtifact, Violation
from taccl_py.jsonio import format_of, parse_json, read_text
from taccl_py.runtimes import MSCCLPP
from taccl_py.units import BYTES_PER_MB, parse_size

if TYPE_CHECKING:
    from taccl_py.collective import Kind
    from taccl_py.lowering.plan import Plan
    from taccl_py.lowering.program import Program
    from taccl_py.schedule.ir import Schedule
    from taccl_py.simulate.timeline import Timeline
    from taccl_py.topology.model import Topology

F = TypeVar("F", bound=Callable[..., Any])

# Options about the machine, which a schedule carries itself.
_MACHINE_OPTIONS = ("topology", "nodes", "sketch", "runtime", "instances")


@dataclass(frozen=True)
class GivenFile:
    """What a file holds.

    Attributes
    ----------
    replay
        Its timeline at a size (None: at the size that it was made for; 1 MB for an XML file or a plan). None if the machine is not known.
    schedule, program, plan
        One of them.
    topology
        The machine, or None.
    sized
        Whether sizes other than its own are possible.
    kind
        Collective of a plan.
    runtime
        Name of the runtime that a program or a plan is for; empty for a schedule.
    """

    replay: Callable[[int | None], Timeline] | None
    schedule: Schedule | None
    program: Program | None
    topology: Topology | None
    sized: bool
    plan: Plan | None = None
    kind: Kind | None = None
    runtime: str = ""


def machine_options(command: F) -> F:
    """Options that say on which machine an XML file or a plan runs."""
    decorators = [
        click.option("--topology", default="", help="Topology for an XML file or a plan: name, formula or file."),
        click.option("--nodes", type=click.IntRange(1), default=None, help="Number of nodes of that topology."),
        click.option("--sketch", default="", help="Sketch that completes a TACCL profile."),
        runtime_option("Runtime that an XML file is for, with its rules, and what its connections hold"),
        click.option(
            "--instances",
            type=click.IntRange(1),
            default=1,
            show_default=True,
            help="Instances that an XML file was made with, to find its chunk on a TACCL profile.",
        ),
    ]
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


def load_subject(file: Path, values: dict[str, Any], *, verified: bool, needs_machine: bool = True) -> GivenFile:
    """Read and verify a file.

    Parameters
    ----------
    file
        A schedule or an MSCCL XML file.
    values
        What was given for `machine_options`.
    verified
        Whether the verifier is asked.
    needs_machine
        Whether an XML file without a topology is refused.

    Raises
    ------
    InputError
        If the file or an option is wrong.
    InvalidArtifact
        If the verifier finds errors.
    """
    from taccl_py.verify.mscclpp import is_plan

    text = read_text(file)
    if file.suffix == ".json" or text.lstrip()[:1] == "{":
        if format_of(text, str(file)) is None and is_plan(parse_json(text, str(file))):
            return _load_plan(file, text, values, verified=verified, needs_machine=needs_machine)
        return _load_schedule(file, text, verified=verified)
    if needs_machine and not values["topology"]:
        raise InputError("an XML file does not say on which machine it runs; add --topology", path=str(file))
    return _load_program(file, text, values, verified=verified)


def _load_schedule(file: Path, text: str, *, verified: bool) -> GivenFile:
    from taccl_py.schedule.files import read_schedule
    from taccl_py.simulate.schedule_replay import replay_schedule
    from taccl_py.verify.any_size import verify_any

    context = click.get_current_context()
    for name in _MACHINE_OPTIONS:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise InputError(
                f"is for XML files, but {file} is a schedule, which carries its machine; leave --{name} out",
                path="command line",
                field=f"--{name}",
            )
    schedule = read_schedule(text, str(file))
    if verified:
        _require_good(file, verify_any(schedule))

    def replay(size: int | None) -> Timeline:
        chunk = schedule.chunk_bytes if size is None else schedule.collective.chunk_bytes(size)
        return replay_schedule(schedule, chunk)

    return GivenFile(replay, schedule, None, schedule.topology, sized=not schedule.topology.chunk_costs)


def _load_plan(file: Path, text: str, values: dict[str, Any], *, verified: bool, needs_machine: bool) -> GivenFile:
    from taccl_py.lowering.plan_reader import kind_of_plan, parse_plan
    from taccl_py.simulate.plan_replay import replay_plan
    from taccl_py.sketch.machine import load_machine
    from taccl_py.verify.mscclpp import verify_plan

    context = click.get_current_context()
    for name in ("runtime", "instances"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise InputError(
                f"is for XML files, but {file} is an MSCCL++ plan; leave --{name} out",
                path="command line",
                field=f"--{name}",
            )
    if needs_machine and not values["topology"]:
        raise InputError("a plan does not say on which machine it runs; add --topology", path=str(file))
    if verified:
        _require_good(file, verify_plan(text, str(file)).violations)
    plan = parse_plan(text, str(file))
    kind = kind_of_plan(plan, str(file))
    if not values["topology"]:
        return GivenFile(None, None, None, None, sized=False, runtime=MSCCLPP.name, plan=plan)
    topology = load_machine(values["topology"], values["sketch"], values["nodes"]).topology

    def replay(size: int | None) -> Timeline:
        size_bytes = parse_size("1MB") if size is None else size
        chunk = BYTES_PER_MB if topology.chunk_costs else size_bytes / plan.chunks_per_size
        try:
            return replay_plan(plan, kind, topology, chunk)
        except InputError as error:
            raise InputError(error.what, path=str(file), field="--topology") from None

    return GivenFile(
        replay, None, None, topology, sized=not topology.chunk_costs, runtime=MSCCLPP.name, plan=plan, kind=kind
    )


def _load_program(file: Path, text: str, values: dict[str, Any], *, verified: bool) -> GivenFile:
    from taccl_py.lowering.msccl_xml import parse_xml
    from taccl_py.lowering.program import chunks_of_size
    from taccl_py.simulate.program_replay import replay_program
    from taccl_py.sketch.machine import load_machine
    from taccl_py.verify.msccl import verify_program

    topology = None
    if values["topology"]:
        topology = load_machine(values["topology"], values["sketch"], values["nodes"]).topology
    runtime = chosen_runtime(values["runtime"], topology)
    program = parse_xml(text, str(file), runtime)
    if values["instances"] != 1 and topology is not None and not topology.chunk_costs:
        raise InputError(
            f"is for TACCL profiles, but {topology.name} has costs by size; leave --instances out",
            path="command line",
            field="--instances",
        )
    if verified:
        _require_good(file, verify_program(text, runtime, kind=program.kind).violations)
    if topology is None:
        return GivenFile(None, None, program, None, sized=False, runtime=runtime.name)
    whole, slots = chunks_of_size(program, runtime), runtime.fifo_slots[program.protocol]

    def replay(size: int | None) -> Timeline:
        size_bytes = parse_size("1MB") if size is None else size
        chunk = BYTES_PER_MB / values["instances"] if topology.chunk_costs else size_bytes / whole
        try:
            return replay_program(program, topology, chunk, fifo_slots=slots, chunks_per_size=whole)
        except InputError as error:
            raise InputError(error.what, path=str(file), field="--topology") from None

    return GivenFile(replay, None, program, topology, sized=not topology.chunk_costs, runtime=runtime.name)


def _require_good(file: Path, violations: Sequence[Violation]) -> None:
    if violations:
        raise InvalidArtifact(str(file), violations)
