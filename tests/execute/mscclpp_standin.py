"""Stand-in of MSCCL++'s Python package, of which the binary module is not here: who chooses which plan, and what it is given.

Written after src/core/algorithm.cc, src/core/executor/execution_plan.cc and src/ext/nccl of microsoft/mscclpp 1f5f065: algorithms by
collective and name, the registered selector before the library's own, and sizes at which a plan ends the program.
"""

import json
import sys
import types
from dataclasses import dataclass, field
from enum import Enum


class DataType(Enum):
    int32, uint32, float16, float32, bfloat16, uint8 = range(6)


class ReduceOp(Enum):
    SUM, MIN, NOP = 0, 3, 255


class CommResult(Enum):
    COMM_SUCCESS = 0


class ExecutionPlan:
    def __init__(self, path, rank):
        with open(path, encoding="utf-8") as file:
            self.value = json.load(file)
        self.path, self.rank = path, rank
        self.name, self.collective = self.value["name"], self.value["collective"]

    def require(self, input_bytes, output_bytes):
        """What the executor throws at."""
        gpu, unit = self.value["gpus"][self.rank], self.value.get("buffer_alignment", 16)
        for size, chunks in ((input_bytes, gpu["input_chunks"]), (output_bytes, gpu["output_chunks"])):
            if size % unit or size // unit % chunks:
                raise RuntimeError("Input or output size is not aligned with buffer alignment or chunks")
        size = output_bytes if self.collective == "allgather" else input_bytes
        if not self.value["min_message_size"] <= size <= self.value["max_message_size"]:
            raise RuntimeError("Input or output size is not within the valid range")


class Algorithm:
    class Constraint:
        def __init__(self, world_size=0, n_ranks_per_node=0):
            self.world_size, self.n_ranks_per_node = world_size, n_ranks_per_node

    def __init__(self, id, execution_plan, tags, constraint):
        self.id, self.plan, self.tags, self.constraint = id, execution_plan, tags, constraint
        self.name, self.collective = execution_plan.name, execution_plan.collective

    def execute(
        self,
        comm,
        input_buffer,
        output_buffer,
        input_size,
        output_size,
        dtype,
        op=ReduceOp.NOP,
        stream=0,
        executor=None,
    ):
        assert op is ReduceOp.SUM
        assert executor is not None
        assert self.plan.rank == comm.rank
        self.plan.require(input_size, output_size)
        executor.execute(comm.rank, input_buffer, output_buffer, input_size, output_size, dtype, self.plan, stream)
        return CommResult.COMM_SUCCESS


class AlgorithmCollectionBuilder:
    instance = None

    def __new__(cls):
        if cls.instance is None:
            cls.instance = super().__new__(cls)
            cls.instance.algorithms, cls.instance.selector = [], lambda *_: None
        return cls.instance

    def add_algorithm_builder(self, algorithm):
        assert isinstance(algorithm, Algorithm)
        self.algorithms.append(algorithm)

    def set_algorithm_selector(self, selector):
        self.selector = selector


@dataclass
class Request:
    """What the NCCL library tells a selector of a call."""

    collective: str
    message_size: int
    rank: int = 0
    world_size: int = 4
    n_ranks_per_node: int = 4
    input_buffer: int = 1 << 20
    output_buffer: int = 1 << 30
    dtype: DataType = DataType.float32
    hints: dict = field(default_factory=dict)

    def buffer_mode(self):
        shard = self.rank * self.message_size if self.collective == "allgather" else 0
        return self.input_buffer in (self.output_buffer, self.output_buffer + shard)


class Library:
    """The NCCL library: what it runs for a call. None is an algorithm of its own, or NCCL's."""

    def __init__(self):
        builder = AlgorithmCollectionBuilder()
        self.selector = builder.selector
        self.algorithms = {}
        for algorithm in builder.algorithms:
            self.algorithms.setdefault(algorithm.collective, {})[algorithm.name] = algorithm

    def run(self, request):
        chosen = self.selector(self.algorithms, request) or self._own_choice(request)
        if chosen is None:
            return None
        share = request.message_size * request.world_size
        given, wanted = {
            "allgather": (request.message_size, share),
            "reducescatter": (request.message_size, request.message_size // request.world_size),
        }.get(request.collective, (request.message_size, request.message_size))
        assert chosen.plan.rank == request.rank
        chosen.plan.require(given, wanted)
        return chosen.name

    def _own_choice(self, request):
        """By constraint, placement and range; neither alignment nor root counts."""
        for algorithm in self.algorithms.get(request.collective, {}).values():
            value, limit = algorithm.plan.value, algorithm.constraint
            size = request.message_size * (request.world_size if request.collective == "allgather" else 1)
            if (limit.world_size, limit.n_ranks_per_node) != (request.world_size, request.n_ranks_per_node):
                continue
            in_range = value["min_message_size"] <= size <= value["max_message_size"]
            if value["inplace"] == request.buffer_mode() and in_range:
                return algorithm
        return None


def put_in_place(monkeypatch, *, old=False):
    """Let ``import mscclpp`` find the stand-in; an old one has no algorithms."""
    package, ext = types.ModuleType("mscclpp"), types.ModuleType("mscclpp.ext")
    package.__version__ = "0.8.0" if old else "0.9.0"
    package.ExecutionPlan, package.DataType, package.ReduceOp, package.ext = ExecutionPlan, DataType, ReduceOp, ext
    if not old:
        package.Algorithm = Algorithm
    ext.AlgorithmCollectionBuilder = AlgorithmCollectionBuilder
    monkeypatch.setattr(AlgorithmCollectionBuilder, "instance", None)
    monkeypatch.setitem(sys.modules, "mscclpp", package)
    monkeypatch.setitem(sys.modules, "mscclpp.ext", ext)
    return package
