"""Machines by name."""

from __future__ import annotations

from pathlib import Path

from taccl_py.api.arguments import names_arguments
from taccl_py.sketch.machine import load_machine as load_with_sketch
from taccl_py.topology.model import Topology


@names_arguments
def load_machine(name: str | Path, nodes: int | None = None, sketch: str = "") -> Topology:
    """Machine of a shipped name, a formula or a file.

    Parameters
    ----------
    name
        A shipped name with or without a number of nodes (``ndv4``, ``ndv4-x2``), a formula (``ring:8``, ``torus:4x4``), or a topology
        file, ours or TACCL's.
    nodes
        Number of nodes of a machine that is described by its node; None: as the name says, else 1.
    sketch
        Sketch that completes a TACCL profile; of no importance for any other machine.

    Returns
    -------
    Topology
        Ranks 0..R-1, directed links and the ports that links share. Alphas and latencies are in microseconds, betas in microseconds per
        megabyte (10^6 bytes).

    Raises
    ------
    InputError
        If there is no such machine, its file is wrong, or it cannot have so many nodes.
    """
    return load_with_sketch(str(name), sketch, nodes).topology
