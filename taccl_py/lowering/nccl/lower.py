"""A schedule as the text of NCCL's or RCCL's channels."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from taccl_py.lowering.nccl.channels import NcclChannels, find_channels
from taccl_py.lowering.nccl.graph_file import read_channels, write_graph
from taccl_py.lowering.nccl.rccl_strings import read_strings, write_strings
from taccl_py.schedule.ir import Schedule


class ChannelForm(StrEnum):
    """Texts that set channels, by their targets' names."""

    NCCL_GRAPH = "nccl-graph"
    RCCL_CHANNELS = "rccl-channels"


@dataclass(frozen=True)
class LoweredChannels:
    """Channels of a schedule, and the text that sets them."""

    channels: NcclChannels
    text: str


def lower_channels(schedule: Schedule, form: ChannelForm) -> LoweredChannels:
    """Write the rings or trees of a schedule, and read them back.

    Parameters
    ----------
    schedule
        A valid schedule of one node.
    form
        ``NCCL_GRAPH_FILE``, or a shell line with ``NCCL_RINGS`` or ``RCCL_TREES``.

    Raises
    ------
    LoweringError
        If it is not rings or trees alone, or not such as the library takes.
    """
    channels = find_channels(schedule)
    if form is ChannelForm.NCCL_GRAPH:
        text = write_graph(channels, schedule.topology.inside)
        again = read_channels(text, str(form))
    else:
        text = write_strings(channels)
        again = read_strings(text, str(form))
    if (again.rings, again.trees) != (channels.rings, channels.trees):
        raise ValueError("the text of the channels does not read back as them")
    return LoweredChannels(channels, text)
