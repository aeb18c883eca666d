"""Measured times of 24 MSCCL XML files on eight MI300X, and the programs of the files, made again.

The files are of three families: ``ag_allpair_PROTOCOL_x_INSTANCES``, ``ag_ring_PROTOCOL_CHANNELS_INSTANCES`` and
``ar_allpair_PROTOCOL_x_INSTANCES``. The steps are those of the files that were measured; of the waits of a step only the order differs.
"""

from functools import cache
from pathlib import Path

from taccl_py.lowering.program import Protocol
from taccl_py.measure.nccl_tests import read_times
from taccl_py.measure.runtime_fit import program_observations
from taccl_py.measure.runtime_programs import all_pairs_allgather, all_pairs_allreduce, ring_allgather
from taccl_py.profiles.catalog import load_profile
from taccl_py.topology.catalog import load_topology

RANKS = 8
PROTOCOLS = {"ll": Protocol.LL, "LL128": Protocol.LL128, "simple": Protocol.SIMPLE}


@cache
def times():
    """(size in bytes, microseconds) of every file by its name."""
    return {one.file: one.rows for one in read_times(Path(__file__).with_suffix(".csv"))}


def program_of(name):
    """Program of a measured file."""
    collective, family, protocol, channels, instances = name.split("_")
    if family == "ring":
        return ring_allgather(RANKS, int(channels), int(instances), PROTOCOLS[protocol])
    make = all_pairs_allgather if collective == "ag" else all_pairs_allreduce
    return make(RANKS, int(instances), PROTOCOLS[protocol])


@cache
def programs():
    """Programs of all measured files by name."""
    return {name: program_of(name) for name in times()}


@cache
def observations():
    """Measured times of all files by name, with what predicts them."""
    topology, profile = load_topology("mi300x"), load_profile("rccl-mi300x")
    return {
        name: program_observations(program, topology, profile, times()[name], name)
        for name, program in programs().items()
    }


def all_observations(*, without=()):
    """All of them in one list, but for some files."""
    return [one for name, ones in observations().items() if name not in without for one in ones]
