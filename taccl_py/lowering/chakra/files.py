"""All files that ASTRA-sim needs for one run of a schedule, to be run from their folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taccl_py.collective import Kind
from taccl_py.errors import InputError, LoweringError
from taccl_py.jsonio import canonical_json
from taccl_py.lowering.chakra.network import TARGET, AstraNetwork, network_of
from taccl_py.lowering.chakra.trace import encode_call, encode_trace, trace_ranks
from taccl_py.schedule.ir import Schedule

WORKLOAD, SYSTEM, NETWORK, MEMORY = "workload", "system.json", "network.yml", "memory.json"
_MOST_MESSAGES, _MOST_BYTES = 1 << 31, 1 << 63  # tags have 32 bits, sizes 64, both with a sign
# Number in the enum CollectiveCommType, and word in the keys of the system file.
_CALLS = {
    Kind.ALLREDUCE: (0, "all-reduce"),
    Kind.ALLGATHER: (2, "all-gather"),
    Kind.ALLTOALL: (6, "all-to-all"),
    Kind.REDUCESCATTER: (7, "reduce-scatter"),
}
# ASTRA-sim has no key for the others. A custom graph is run as it is, whatever the call that it stands for.
_STAND_IN = _CALLS[Kind.ALLREDUCE]


@dataclass(frozen=True)
class ChakraFiles:
    """Files of a folder.

    Attributes
    ----------
    files
        By name: ``NAME.<rank>.et`` of the graph, ``workload.<rank>.et`` that calls it, ``system.json``, ``memory.json``, ``network.yml``.
    network
        What ``network.yml`` says, or None where it was left out.
    num_nodes
        Nodes of all ranks' graphs.
    """

    files: Mapping[str, bytes]
    network: AstraNetwork | None
    num_nodes: int

    @property
    def command(self) -> str:
        """ASTRA-sim's arguments, to be given in the folder."""
        network = NETWORK if self.network is not None else "YOUR-NETWORK"
        return (
            f"--workload-configuration={WORKLOAD} --system-configuration={SYSTEM} --remote-memory-configuration={MEMORY} "
            f"--network-configuration={network}"
        )


def lower_chakra(schedule: Schedule, name: str, *, with_network: bool = True) -> ChakraFiles:
    """Execution traces of a schedule, and ASTRA-sim's files for a run of it.

    Parameters
    ----------
    schedule
        A valid schedule.
    name
        Prefix of the graph's files.
    with_network
        Whether the machine must be a network of the analytical back end.

    Raises
    ------
    InputError
        If the name cannot be one of a file.
    LoweringError
        If the analytical back end has no network like the machine, or there are more messages or bytes than fields hold.
    """
    topology, kind = schedule.topology, schedule.collective.kind
    if not name or name == WORKLOAD or set(name) & set("/\\\0"):
        raise InputError(
            f"{name!r} cannot be the prefix of the files of the graph; choose a word other than {WORKLOAD}",
            path="command line",
            field="--name",
        )
    size = max(1, round(schedule.size_bytes))
    largest = max((len(message.chunks) for message in schedule.messages), default=0) * schedule.chunk_bytes
    if max(size, largest) >= _MOST_BYTES:
        raise LoweringError(
            f"sizes in execution traces are less than 2^63 bytes, the schedule has {max(size, largest):.3g}; use a smaller size",
            runtime=TARGET,
            limit="bytes",
        )
    if len(schedule.messages) > _MOST_MESSAGES:
        raise LoweringError(
            f"the schedule has {len(schedule.messages)} messages, and tags are for {_MOST_MESSAGES}; use fewer chunks",
            runtime=TARGET,
            limit="tags",
        )
    network = network_of(topology) if with_network else None
    ranks = trace_ranks(schedule)
    number, word = _CALLS.get(kind, _STAND_IN)
    files = {f"{name}.{rank}.et": encode_trace(nodes) for rank, nodes in enumerate(ranks)}
    files |= {f"{WORKLOAD}.{rank}.et": encode_call(str(kind), number, size) for rank in range(topology.num_ranks)}
    # One piece of one collective at a time; a graph has its own pieces.
    system = {"scheduling-policy": "FIFO", "preferred-dataset-splits": 1, f"{word}-implementation-custom": [name]}
    files[SYSTEM] = canonical_json(system).encode()
    files[MEMORY] = canonical_json({"memory-type": "NO_MEMORY_EXPANSION"}).encode()
    if network is not None:
        files[NETWORK] = network.text.encode()
    return ChakraFiles(files, network, sum(map(len, ranks)))
