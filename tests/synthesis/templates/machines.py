"""Machines on which templates are tried."""

from taccl_py.topology.catalog import load_topology

ONE_NODE = (
    "dgx1",
    "mi250x",
    "mi300x",
    "ndv4",
    "ring:8",
    "torus:4x4",
    "mesh:3x3",
    "hypercube:3",
    "full:6",
    "switch:6",
)
TWO_NODES = ("ndv2-x2", "ndv4-x2")


def load(name):
    return load_topology(name, None) if ":" in name or "-x" in name else load_topology(name, 1)
