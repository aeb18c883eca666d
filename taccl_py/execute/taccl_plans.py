"""Registers MSCCL++ execution plans, so that collective calls run them. Needs MSCCL++ 0.9 or newer, and nothing of taccl.

``taccl install --runtime mscclpp`` writes this file beside the plans and their table, taccl_plans.json. A program on NCCL takes
them as it is, or by a call before its first communicator::

    LD_PRELOAD=.../libmscclpp_nccl.so PYTHONPATH=DIR torchrun --nproc-per-node 8 -m taccl_plans train.py ARGUMENTS

    import taccl_plans
    taccl_plans.register()      # rank and number of ranks are those of the launcher

and one on MSCCL++ calls a plan itself::

    plans = taccl_plans.load(rank, num_ranks)
    plans.execute(communicator, executor, "allreduce", input_address, output_address, size_bytes, data_type, stream)

Sizes are bytes of the output for an AllGather and of the input for the others, as MSCCL++ counts them. MSCCL++ does not tell a
selector the operator of a call, and plans only sum.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

TABLE = "taccl_plans.json"
FORMAT, VERSION = "taccl-plans", 1
_HERE = Path(__file__).resolve().parent
# Rank and number of ranks, as torchrun, Open MPI, MPICH and its kin, and Slurm tell them.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


class PlanError(RuntimeError):
    """One sentence on what is wrong and what to do."""


class RegisteredPlan(NamedTuple):
    """A plan, and the calls that it is for.

    Attributes
    ----------
    file
        Where it is, below the folder of the table.
    name
        Its name in the file; MSCCL++ tells plans apart by it.
    collective, num_ranks, in_place
        The calls.
    root
        Root of a rooted collective, else -1.
    ranks_per_node
        Neighbouring ranks that must reach each other's memory, a divisor of `num_ranks`; ranks on nodes of a multiple of it do.
    min_bytes, max_bytes
        Sizes, both inclusive.
    input_chunks, output_chunks, alignment_bytes
        How it cuts the buffers of a rank.
    """

    file: str
    name: str
    collective: str
    num_ranks: int
    in_place: bool
    root: int
    ranks_per_node: int
    min_bytes: int
    max_bytes: int
    input_chunks: int
    output_chunks: int
    alignment_bytes: int

    @property
    def counted_chunks(self) -> int:
        """Chunks of the buffer whose size counts."""
        return self.output_chunks if self.collective == "allgather" else self.input_chunks

    @property
    def unit_bytes(self) -> int:
        """Of what a size must be a multiple; MSCCL++ ends the program at others."""
        return self.alignment_bytes * self.counted_chunks

    def takes(self, size_bytes: int) -> bool:
        """True if it runs at a size."""
        return self.min_bytes <= size_bytes <= self.max_bytes and size_bytes > 0 and size_bytes % self.unit_bytes == 0


def describe(value: Mapping[str, Any], file: str, root: int = -1) -> RegisteredPlan:
    """For which calls a plan is, by its JSON; `root` is what it does not tell.

    Raises
    ------
    PlanError
        If a field is not there.
    """
    try:
        gpus = value["gpus"]
        return RegisteredPlan(
            file=file,
            name=str(value["name"]),
            collective=str(value["collective"]),
            num_ranks=len(gpus),
            in_place=bool(value["inplace"]),
            root=root,
            ranks_per_node=_ranks_per_node(gpus),
            min_bytes=int(value.get("min_message_size", 0)),
            max_bytes=int(value.get("max_message_size", 2**64 - 1)),
            input_chunks=int(gpus[0]["input_chunks"]),
            output_chunks=int(gpus[0]["output_chunks"]),
            alignment_bytes=int(value.get("buffer_alignment", 16)),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise PlanError(f"{file} is no execution plan of MSCCL++ ({error!r}); make it again") from None


def _ranks_per_node(gpus: Sequence[Mapping[str, Any]]) -> int:
    """The least divisor of the number of ranks that keeps those together that use each other's memory, or one switch."""
    pairs = set()
    for rank, gpu in enumerate(gpus):
        for channel in gpu.get("channels", ()):
            if channel["channel_type"] == "switch":
                members = [one for group in channel["rank_groups"] for one in group["ranks"]]
                pairs |= {(members[0], one) for one in members}
            elif channel["channel_type"] == "memory":
                pairs |= {(rank, peer) for peer in channel["connected_to"]}
    sizes = (size for size in range(1, len(gpus)) if len(gpus) % size == 0)
    return next((size for size in sizes if all(a // size == b // size for a, b in pairs)), len(gpus))


def read_table(folder: str | os.PathLike[str] = _HERE) -> tuple[RegisteredPlan, ...]:
    """Plans of a folder, as its table lists them.

    Raises
    ------
    PlanError
        If the table cannot be read, or a plan is not there.
    """
    path = Path(folder) / TABLE
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        if (table["format"], table["version"]) != (FORMAT, VERSION):
            raise PlanError(f"{path} is of another version than this module; run taccl install again")
        plans = tuple(RegisteredPlan(**one) for one in table["plans"])
    except OSError as error:
        raise PlanError(f"{path} cannot be read ({error.strerror}); run taccl install again") from None
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(f"{path} is no table of plans ({error}); run taccl install again") from None
    missing = [plan.file for plan in plans if not (Path(folder) / plan.file).is_file()]
    if missing:
        raise PlanError(f"{Path(folder) / missing[0]} is not there; run taccl install again")
    return plans


class PlanRegistry:
    """Plans for one number of ranks, made ready for MSCCL++.

    Parameters
    ----------
    plans
        Some, in the order in which they are chosen; those for other numbers of ranks are left out.
    folder
        Where their files are.
    rank, num_ranks
        Of this process, among all.
    ranks_per_domain
        Neighbouring ranks that reach each other's memory, where NVLink joins nodes; None: those of a node.

    Raises
    ------
    PlanError
        If none is for so many ranks, or MSCCL++ is not installed or too old.
    """

    def __init__(
        self,
        plans: Sequence[RegisteredPlan],
        folder: str | os.PathLike[str],
        rank: int,
        num_ranks: int,
        *,
        ranks_per_domain: int | None = None,
    ) -> None:
        self.plans = tuple(plan for plan in plans if plan.num_ranks == num_ranks)
        if not self.plans:
            known = ", ".join(map(str, sorted({plan.num_ranks for plan in plans}))) or "none"
            raise PlanError(
                f"there is no plan for {num_ranks} ranks, only for {known}; start as many, or install plans for {num_ranks}"
            )
        if not 0 <= rank < num_ranks:
            raise PlanError(f"rank {rank} is not among {num_ranks}; name it as it is in the whole program")
        self.rank = rank
        self.num_ranks = num_ranks
        self._folder = Path(folder)
        self._domain = ranks_per_domain
        self._mscclpp = load_mscclpp()
        self._algorithms: dict[tuple[str, int], Any] = {}

    def choose(
        self, collective: str, size_bytes: int, *, in_place: bool, ranks_per_node: int, root: int = -1
    ) -> RegisteredPlan | None:
        """Return the plan for a call, or None."""
        reach = self._domain or ranks_per_node
        for plan in self.plans:
            if (plan.collective, plan.in_place) != (collective, in_place) or not plan.takes(size_bytes):
                continue
            if reach % plan.ranks_per_node == 0 and plan.root in (-1, root):
                return plan
        return None

    def algorithm(self, plan: RegisteredPlan, rank: int | None = None) -> Any:
        """Return a plan as MSCCL++'s Algorithm, for this process or for the rank that it has in a communicator."""
        place = self.rank if rank is None else rank
        if (plan.name, place) not in self._algorithms:
            # No node has 0 ranks, so that the NCCL library's own selector, which knows neither chunks nor roots and ends the
            # program at sizes that they do not divide, leaves the plan to `select`.
            constraint = self._mscclpp.Algorithm.Constraint(plan.num_ranks, 0)
            self._algorithms[plan.name, place] = self._mscclpp.Algorithm(
                id=f"{plan.name}-{place}",
                execution_plan=self._mscclpp.ExecutionPlan(str(self._folder / plan.file), place),
                constraint=constraint,
                tags={"taccl": 1},
            )
        return self._algorithms[plan.name, place]

    def select(self, algorithms: Mapping[str, Mapping[str, Any]], request: Any) -> Any:
        """Return the algorithm for a request of the NCCL library, or None for one that is left to it.

        Parameters
        ----------
        algorithms
            What is registered, by collective and name.
        request
            MSCCL++'s description of the call; it is the same on all ranks but for addresses.
        """
        if request.world_size != self.num_ranks or request.dtype == getattr(self._mscclpp.DataType, "uint8", None):
            return None
        size = request.message_size * (request.world_size if request.collective == "allgather" else 1)
        (root,) = request.hints.get("root", (-1,))
        plan = self.choose(
            request.collective, size, in_place=_is_in_place(request), ranks_per_node=request.n_ranks_per_node, root=root
        )
        if plan is None:
            return None
        if request.rank == self.rank:
            return algorithms[plan.collective][plan.name]
        algorithm = self.algorithm(plan, request.rank)  # a communicator that counts its ranks otherwise
        return getattr(algorithm, "_algorithm", algorithm)

    def execute(  # noqa: PLR0913
        self,
        communicator: Any,
        executor: Any,
        collective: str,
        input_address: int,
        output_address: int,
        size_bytes: int,
        data_type: Any,
        stream: int = 0,
        *,
        ranks_per_node: int | None = None,
        root: int = -1,
    ) -> int:
        """Run the plan for a call and return MSCCL++'s result code.

        Parameters
        ----------
        communicator, executor
            MSCCL++'s, of all ranks.
        collective, size_bytes, root
            The call.
        input_address, output_address, data_type, stream
            As MSCCL++'s Algorithm.execute takes them.
        ranks_per_node
            Ranks that reach each other's memory; None: all.

        Raises
        ------
        PlanError
            If no plan is for it.
        """
        shard = size_bytes // self.num_ranks
        begins = {"allgather": output_address + self.rank * shard, "reducescatter": output_address - self.rank * shard}
        plan = self.choose(
            collective, size_bytes, in_place=input_address == begins.get(collective, output_address),
            ranks_per_node=ranks_per_node or self.num_ranks, root=root,
        )  # fmt: skip
        if plan is None:
            raise PlanError(
                f"no plan is for {collective} of {size_bytes} bytes there; install one, or call another library"
            )
        return self.run(plan, communicator, executor, input_address, output_address, size_bytes, data_type, stream)

    def run(  # noqa: PLR0913
        self,
        plan: RegisteredPlan,
        communicator: Any,
        executor: Any,
        input_address: int,
        output_address: int,
        size_bytes: int,
        data_type: Any,
        stream: int = 0,
    ) -> int:
        """Run one of the plans; see `execute`."""
        chunk_bytes = size_bytes // plan.counted_chunks
        result = self.algorithm(plan).execute(
            communicator, input_address, output_address, chunk_bytes * plan.input_chunks, chunk_bytes * plan.output_chunks,
            data_type, op=self._mscclpp.ReduceOp.SUM, stream=stream, executor=executor,
        )  # fmt: skip
        return int(getattr(result, "value", result))


def load(
    rank: int | None = None,
    num_ranks: int | None = None,
    *,
    ranks_per_domain: int | None = None,
    folder: str | os.PathLike[str] = _HERE,
) -> PlanRegistry:
    """Plans of a folder for this process; rank and number of ranks are those of the launcher where they are None.

    Raises
    ------
    PlanError
        As `read_table` and `PlanRegistry` do, or if no launcher tells the rank.
    """
    if rank is None or num_ranks is None:
        told = next((pair for pair in _LAUNCHERS if all(name in os.environ for name in pair)), None)
        if told is None:
            raise PlanError(
                "no launcher tells rank and number of ranks; name them, or start with torchrun, mpirun or srun"
            )
        try:
            told_rank, told_ranks = (int(os.environ[name]) for name in told)
        except ValueError:
            raise PlanError(
                f"{' and '.join(told)} are no whole numbers; set them, or name rank and number of ranks"
            ) from None
        rank = told_rank if rank is None else rank
        num_ranks = told_ranks if num_ranks is None else num_ranks
    return PlanRegistry(read_table(folder), folder, rank, num_ranks, ranks_per_domain=ranks_per_domain)


def register(
    rank: int | None = None,
    num_ranks: int | None = None,
    *,
    ranks_per_domain: int | None = None,
    folder: str | os.PathLike[str] = _HERE,
) -> PlanRegistry:
    """Make MSCCL++'s NCCL library run the plans, in communicators that are made from now on; see `load`."""
    plans = load(rank, num_ranks, ranks_per_domain=ranks_per_domain, folder=folder)
    import mscclpp.ext

    builder = mscclpp.ext.AlgorithmCollectionBuilder()
    for plan in plans.plans:
        builder.add_algorithm_builder(plans.algorithm(plan))
    builder.set_algorithm_selector(plans.select)
    return plans


def _is_in_place(request: Any) -> bool:
    """True if a call is in place, as NCCL defines it; the request's own answer is wrong for a ReduceScatter."""
    given, wanted = request.input_buffer, request.output_buffer
    if request.collective == "allgather":
        return bool(given == wanted + request.rank * request.message_size)
    if request.collective == "reducescatter":
        return bool(wanted == given + request.rank * (request.message_size // request.world_size))
    return bool(given == wanted)


def load_mscclpp() -> Any:
    """Return MSCCL++'s Python package.

    Raises
    ------
    PlanError
        If it cannot be imported, or has no algorithms that a program makes of plans.
    """
    try:
        import mscclpp
    except ImportError as error:
        raise PlanError(f"mscclpp cannot be imported ({error}); build MSCCL++ 0.9 or newer") from None
    if not hasattr(mscclpp, "Algorithm"):
        found = getattr(mscclpp, "__version__", "an old version")
        raise PlanError(f"mscclpp is {found}, which has no algorithms to register; build MSCCL++ 0.9 or newer")
    return mscclpp


def main(arguments: Sequence[str]) -> None:
    """Register the plans for this process, then run a program: a script, or ``-m`` and a module, with its arguments."""
    is_module = arguments[:1] == ["-m"]
    program = list(arguments[is_module:])
    if not program:
        sys.exit("usage: python -m taccl_plans SCRIPT ARGUMENTS, or python -m taccl_plans -m MODULE ARGUMENTS")
    if not is_module and not Path(program[0]).exists():
        sys.exit(f"taccl_plans: {program[0]}: no such file; name a script, or a module after -m")
    try:
        register()
    except PlanError as error:
        sys.exit(f"taccl_plans: {error}")
    sys.argv = program
    if is_module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(program[0]).resolve().parent))
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
