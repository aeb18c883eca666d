"""Targets of ``taccl lower`` that are no programs of a runtime: traces for a simulator, and channels for NCCL and RCCL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from taccl_py.errors import InputError
from taccl_py.lowering.nccl import ChannelForm, lower_channels
from taccl_py.units import format_count, format_time

if TYPE_CHECKING:
    from taccl_py.schedule.ir import Schedule

CHAKRA = "chakra"
OTHER_TARGETS = (CHAKRA, *map(str, ChannelForm))
# Options that say for which calls a program is made; these targets have no programs.
_OF_PROGRAMS = ("runtime", "placement", "protocol", "instances", "min_bytes", "max_bytes", "runtime_profile", "switch")


@dataclass(frozen=True, slots=True)
class TargetFiles:
    """Files for a target, facts for --json, and a summary for people.

    Attributes
    ----------
    files
        Texts by path, the first one for stdout where the output is that.
    facts
        By key.
    summary
        One line.
    note
        Another line, or empty.
    """

    files: Mapping[Path, bytes | str]
    facts: dict[str, Any] = field(default_factory=dict)
    summary: str = ""
    note: str = ""


def lower_to(target: str, schedule: Schedule, output: Path, values: dict[str, Any]) -> TargetFiles:
    """Files of a schedule for one of `OTHER_TARGETS`.

    Raises
    ------
    InputError
        If an option says something that the target does not have.
    LoweringError
        If the target cannot say what the schedule does.
    """
    _refuse_given(target, (*_OF_PROGRAMS, *(() if target == CHAKRA else ("name", "no_network"))))
    return _traces(schedule, output, values) if target == CHAKRA else _channels(schedule, output, ChannelForm(target))


def refuse_network_option(target: str) -> None:
    """Refuse --no-network for targets that have no network.

    Raises
    ------
    InputError
        If it was given.
    """
    _refuse_given(target, ("no_network",))


def _refuse_given(target: str, names: tuple[str, ...]) -> None:
    context = click.get_current_context()
    given = next((name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE), None)
    if given is not None:
        option = f"--{given.replace('_', '-')}"
        raise InputError(f"means nothing for --to {target}; leave it out", path="command line", field=option)


def _traces(schedule: Schedule, output: Path, values: dict[str, Any]) -> TargetFiles:
    from taccl_py.lowering.chakra import lower_chakra

    if str(output) == "-" or output.is_file():
        raise InputError(
            "is one file, and execution traces are a folder of them; name a folder",
            path="command line",
            field="--output",
        )
    made = lower_chakra(schedule, values["name"] or "algorithm", with_network=not values["no_network"])
    shape = made.network.shape if made.network is not None else None
    ranks = format_count(schedule.topology.num_ranks, "rank")
    network = f"network {shape}" if shape is not None else "no network file"
    return TargetFiles(
        {output / name: content for name, content in made.files.items()},
        {"target": CHAKRA, "nodes": made.num_nodes, "network": shape, "arguments": made.command},
        f"execution traces of {ranks}, {format_count(made.num_nodes, 'node')}, {network}; schedule {format_time(schedule.makespan_us)}",
        f"run it there: AstraSim_Analytical_Congestion_Aware {made.command}",
    )


def _channels(schedule: Schedule, output: Path, form: ChannelForm) -> TargetFiles:
    made = lower_channels(schedule, form)
    channels = made.channels
    kind, number = ("ring", len(channels.rings)) if channels.rings else ("tree", len(channels.trees))
    note = ""
    if channels.rounded:
        note = f"note: channels carry equal parts; those of the schedule differ from that by {100 * channels.rounded:.1f} % at most"
    return TargetFiles(
        {output: made.text},
        {"target": str(form), "rings": len(channels.rings), "trees": len(channels.trees), "channel_gbps": channels.gbps,
         "rounded": channels.rounded},
        f"{format_count(number, kind)} of {format_count(channels.num_ranks, 'rank')}, {channels.gbps:.4g} GB/s each",
        note,
    )  # fmt: skip
