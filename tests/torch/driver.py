"""What a process of several does in these tests: ``python -m tests.torch.driver MODE DIRECTORY``."""

import itertools
import json
import logging
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import taccl_py.torch
from taccl_py.errors import TacclError

STALL_SECONDS = 1.0
TYPES = (torch.float32, torch.bfloat16, torch.int32)
REDUCTIONS = {"all_reduce", "reduce_scatter_tensor"}


class Kept(logging.Handler):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


KEPT = Kept()


def numbers(elements, data_type, rank):
    """Whole numbers so small that sums of any order are exact in all types."""
    return torch.arange(elements).add(7 * rank).remainder(5).sub(2).to(data_type)


def tensors(name, elements, data_type, *, in_place, rank, num_ranks):
    """Output and input of a call whose whole buffer has so many elements; the first is all there is where there is one."""
    part, own = elements // num_ranks, slice(rank * (elements // num_ranks), (rank + 1) * (elements // num_ranks))
    whole = numbers(elements, data_type, rank)
    if name in ("all_reduce", "broadcast"):
        return (whole,)
    if name == "all_gather_into_tensor":
        if in_place:
            return whole, whole[own]
        return torch.full((elements,), 99, dtype=data_type), numbers(part, data_type, rank)
    if name == "reduce_scatter_tensor":
        return (whole[own], whole) if in_place else (torch.full((part,), 99, dtype=data_type), whole)
    return (whole, whole) if in_place else (torch.full((elements,), 99, dtype=data_type), whole)


def extra(name, operator):
    return {"op": operator} if name in REDUCTIONS else {"src": 1} if name == "broadcast" else {}


def compare(comm, name, elements, data_type, *, in_place, operator=dist.ReduceOp.SUM):
    """Wrong elements of this rank, beside torch's own."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    how = {"rank": rank, "num_ranks": num_ranks}
    ours = tensors(name, elements, data_type, in_place=in_place, **how)
    theirs = tensors(name, elements, data_type, in_place=False, **how)
    getattr(comm, name)(*ours, **extra(name, operator))
    own_type = torch.float32 if data_type is torch.bfloat16 else data_type  # gloo does not sum all types everywhere
    wide = [tensor.to(own_type) for tensor in theirs]
    getattr(dist, name)(*wide, **extra(name, operator))
    wrong = int((ours[0] != wide[0].to(data_type)).sum())
    if not in_place and len(ours) > 1:
        wrong += int((ours[1] != theirs[1]).sum())  # the input is what it was
    return wrong


def collectives(folder):
    """All collectives, types and placements at two sizes that files serve."""
    results = []
    for directory in sorted(Path(folder).iterdir()):
        comm = taccl_py.torch.load(directory)
        chunks = {file.kind: file.chunks for file in comm._files.files}
        for name, data_type, in_place in itertools.product(
            ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast"),
            TYPES, (True, False),
        ):  # fmt: skip
            if not in_place and name in ("all_reduce", "broadcast"):
                continue
            for chunk_elements in (1, 37, 5000):
                kind = name.replace("_into_tensor", "").replace("_tensor", "").replace("_single", "").replace("_", "")
                elements = chunk_elements * chunks[kind]
                found = compare(comm, name, elements, data_type, in_place=in_place)
                results.append([directory.name, name, str(data_type), in_place, elements, found])
        for operator in (dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
            found = compare(comm, "all_reduce", 8 * chunks["allreduce"], torch.int32, in_place=True, operator=operator)
            results.append([directory.name, "all_reduce", str(operator), True, 0, found])
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, results)
    return {"results": [[*row[:-1], sum(each[i][-1] for each in gathered)] for i, row in enumerate(results)]}


def attempt(make):
    """The error of a call, and how long it took."""
    start = time.monotonic()
    try:
        make()
        error = ""
    except (TacclError, RuntimeError) as found:
        error = f"{type(found).__name__}: {found}"
    return [error, time.monotonic() - start]


def main():
    mode, folder = sys.argv[1:]
    torch.set_num_threads(1)
    logging.getLogger("taccl_py.torch").addHandler(KEPT)
    dist.init_process_group("gloo")
    result = globals()[mode](folder)
    lines = [KEPT.lines] if dist.get_rank() else [KEPT.lines, result]
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps({"log": lines[0], **result}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
