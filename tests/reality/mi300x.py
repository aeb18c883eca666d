"""Measured times of 24 MSCCL XML files on eight MI300X, and the programs of the files, made again.

The files are of three families: ``ag_allpair_PROTOCOL_x_INSTANCES``, ``ag_ring_PROTOCOL_CHANNELS_INSTANCES`` and
``ar_allpair_PROTOCOL_x_INSTANCES``. The steps are those of the files that were measured; of the waits of a step only the order differs.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path

from taccl_py.lowering.program import Protocol, chunks_of_size
from taccl_py.measure.nccl_tests import read_times
from taccl_py.measure.runtime_fit import fit_runtime, program_observations, program_parameters
from taccl_py.measure.runtime_programs import all_pairs_allgather, all_pairs_allreduce, ring_allgather
from taccl_py.profiles.catalog import load_profile
from taccl_py.profiles.model import UsableShare
from taccl_py.runtimes import RCCL
from taccl_py.simulate.program_replay import replay_program
from taccl_py.topology.catalog import load_topology

RANKS = 8
ONE_OF_EACH = ("ar_allpair_ll_x_1", "ar_allpair_LL128_x_1", "ar_allpair_simple_x_1")
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


def by_links_alone():
    """All measured times, predicted by the replay without a profile."""
    topology = load_topology("mi300x")

    def of(name, size):
        program = programs()[name]
        cells = chunks_of_size(program, RCCL)
        slots = RCCL.fifo_slots[program.protocol]
        return replay_program(program, topology, size / cells, fifo_slots=slots, chunks_per_size=cells).makespan_us

    return [
        replace(one, predicted=lambda _, name=name, size=one.size_bytes: of(name, size))
        for name, ones in observations().items()
        for one in ones
    ]


def stranger():
    """A profile that knows nothing of MI300X: the costs of an A100 with the buffers of RCCL."""
    a100, mi300x = load_profile("executor-a100"), load_profile("rccl-mi300x")
    protocols = {
        name: replace(costs, wire=own.wire, tail=own.tail, payload_bytes=own.payload_bytes, slots=own.slots)
        for name, own in mi300x.protocols.items()
        for costs in [a100.protocols[name]]
    }
    return replace(a100, name="stranger", runtime="rccl", protocols=protocols, shares={"xgmi": UsableShare(0.9, 48.0)})


def fitted_to(names):
    """Fit of that profile to some files."""
    topology, start = load_topology("mi300x"), stranger()
    parameters = program_parameters(start, topology, [program_of(name) for name in names])
    return fit_runtime(start, parameters, [one for name in names for one in observations()[name]])
