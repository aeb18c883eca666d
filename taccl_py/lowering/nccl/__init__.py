"""NCCL's and RCCL's own channels: the orders of GPUs in which their rings and trees go through a node.

::

    find_channels   a schedule's rings or trees, if it has nothing else
    graph_file      NCCL_GRAPH_FILE, written and read
    rccl_strings    NCCL_RINGS and RCCL_TREES of RCCL, written and read

The library moves the data then, with its own kernels, pieces and protocols: only the orders are the schedule's.
"""

from taccl_py.lowering.nccl.channels import NcclChannels, find_channels
from taccl_py.lowering.nccl.graph_file import read_channels, write_graph
from taccl_py.lowering.nccl.lower import ChannelForm, LoweredChannels, lower_channels
from taccl_py.lowering.nccl.rccl_strings import read_strings, write_strings

__all__ = [
    "ChannelForm",
    "LoweredChannels",
    "NcclChannels",
    "find_channels",
    "lower_channels",
    "read_channels",
    "read_strings",
    "write_graph",
    "write_strings",
]
