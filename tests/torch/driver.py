"""What a process of several does in these tests: ``python -m tests.torch.driver PROCESSES MODE DIRECTORY``.

The processes are copies of one that has imported everything, which takes longer than all they do.
"""

import itertools
import json
import logging
import os
import socket
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
        gathered, mine = torch.full((elements,), 99, dtype=data_type), numbers(part, data_type, rank)
        if not in_place:
            return gathered, mine
        gathered[own] = mine
        return gathered, gathered[own]
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


def everywhere(make):
    """Errors of all ranks, by rank, the longest time, and what was logged on rank 0."""
    before, gathered = len(KEPT.lines), [None] * dist.get_world_size()
    dist.all_gather_object(gathered, attempt(make))
    return {
        "errors": [each[0] for each in gathered],
        "seconds": max(each[1] for each in gathered),
        "log": KEPT.lines[before:],
    }


def require(is_right):
    if not is_right:
        raise RuntimeError("wrong result")


def refused(folder):
    """Calls that end with an error on all ranks, or are left to the backend; the group can be used afterwards."""
    rank, good = dist.get_rank(), taccl_py.torch.load(Path(folder) / "full")
    other = taccl_py.torch.load(Path(folder) / ("ring" if rank == 2 else "full"))
    cases = {
        "different directories": lambda: other.all_reduce(torch.ones(64)),
        "different sizes": lambda: good.all_reduce(torch.ones(64 if rank else 128)),
        "different types": lambda: good.all_reduce(torch.ones(64, dtype=torch.float64 if rank == 1 else torch.float32)),
        "different functions": lambda: (
            good.broadcast(torch.ones(64), src=0) if rank == 3 else good.all_reduce(torch.ones(64))
        ),
        "different operators": lambda: good.all_reduce(
            torch.ones(64), op=[dist.ReduceOp.SUM, dist.ReduceOp.MAX][rank % 2]
        ),
        "different roots": lambda: good.broadcast(torch.ones(64), src=rank % 2),
        "different placements": lambda: (
            good.all_to_all_single(*2 * [torch.ones(64)])
            if rank
            else good.all_to_all_single(torch.ones(64), torch.ones(64))
        ),
        "one is not contiguous": lambda: good.all_reduce(torch.ones(8, 8).T if rank == 1 else torch.ones(64)),
        "one is no tensor": lambda: good.all_reduce([1.0] if rank == 1 else torch.ones(1)),
        "wrong lengths": lambda: good.all_gather_into_tensor(torch.ones(64), torch.ones(15)),
        "two types": lambda: good.reduce_scatter_tensor(torch.ones(16), torch.ones(64, dtype=torch.float64)),
        "shared memory": lambda: good.all_gather_into_tensor((both := torch.ones(80))[:64], both[60:76]),
        "no root": lambda: good.broadcast(torch.ones(64)),
        "root elsewhere": lambda: good.broadcast(torch.ones(64), src=17),
        "no group": lambda: good.all_reduce(torch.ones(64), group=[0, 1]),
        "asynchronous": lambda: good.all_reduce(torch.ones(64), async_op=True),
    }
    found = {name: everywhere(make) for name, make in cases.items()}
    found |= {f"wrong file on {who}": everywhere(lambda who=who: broken(folder, who)) for who in ("all", "rank 1")}
    found["afterwards"] = everywhere(lambda: summed(good, 64))
    return {"cases": found}


def broken(folder, who):
    """A call with a file that gives a wrong result."""
    here = who == "all" or f"rank {dist.get_rank()}" == who
    taccl_py.torch.load(Path(folder) / ("broken" if here else "full")).all_reduce(torch.ones(64))


def summed(comm, elements, **how):
    ones = torch.ones(elements)
    comm.all_reduce(ones, **how)
    require(bool((ones == dist.get_world_size()).all()))


def left(folder):
    """Calls that the backend makes; each reason is told once."""
    good, other = (taccl_py.torch.load(Path(folder) / name) for name in ("full", "other"))
    groups = [dist.new_group([0, 1]), dist.new_group([1, 3])]
    small = taccl_py.torch.load(Path(folder) / "two")

    def in_groups():
        """Files for two ranks on groups of two, one of which is not the first two of all."""
        for members, group in zip(([0, 1], [1, 3]), groups, strict=True):
            ones = torch.full((64,), float(dist.get_rank()))
            if dist.get_rank() in members:
                small.all_reduce(ones, group=group)
                small.broadcast(ones, src=members[1], group=group)
                require(ones.tolist() == 64 * [float(sum(members))])

    def outside():
        if dist.get_rank() in (0, 2):
            small.all_reduce(torch.ones(64), group=groups[1])

    def uneven():
        rank, size = dist.get_rank(), dist.get_world_size()
        output = torch.empty(sum(range(1, size + 1)))
        good.all_to_all_single(
            output, torch.full((size * (rank + 1),), float(rank)), list(range(1, size + 1)), size * [rank + 1]
        )
        require(output.tolist() == [float(src) for src in range(size) for _ in range(src + 1)])

    def averaged():
        ones = torch.full((64,), float(dist.get_rank()))
        good.all_reduce(ones, op=dist.ReduceOp.AVG)
        require(ones.tolist() == 64 * [(dist.get_world_size() - 1) / 2])
        large = torch.full((64,), 40000.0, dtype=torch.float16)  # whose sum is no float16
        good.all_reduce(large, op=dist.ReduceOp.AVG)
        require(large.tolist() == 64 * [40000.0])

    def copied(name, *, in_place):
        """A call for the other placement than that of its file."""
        require(compare(apart, name, 64, torch.float32, in_place=in_place) == 0)

    apart = taccl_py.torch.load(Path(folder) / "apart")
    cases = {
        "copied input": lambda: copied("all_reduce", in_place=True),
        "copied part": lambda: copied("all_gather_into_tensor", in_place=False),
        "copied whole": lambda: copied("all_to_all_single", in_place=False),
        "by a file": lambda: summed(good, 64),
        "average": averaged,
        "elements": lambda: summed(good, 63),
        "elements again": lambda: summed(good, 61),
        "no rank": lambda: summed(other, 64),
        "size": lambda: summed(small_sizes, 64),
        "empty": lambda: good.all_reduce(torch.ones(0)),
        "no file for it": lambda: small_sizes.broadcast(torch.ones(64), src=0),
        "splits": uneven,
        "root": lambda: good.broadcast(torch.ones(64), src=3),
        "bits": lambda: good.all_reduce(torch.ones(64, dtype=torch.int32), op=dist.ReduceOp.BOR),
        "groups": in_groups,
        "outside": outside,
    }
    small_sizes = taccl_py.torch.load(Path(folder) / "sizes")
    return {"cases": {name: everywhere(make) for name, make in cases.items()}}


def diverge(folder, make):
    """Two calls that all ranks make alike, and then one that rank 1 makes differently: nobody waits for ever."""
    comm = taccl_py.torch.load(Path(folder) / "ring", stall_seconds=STALL_SECONDS)
    for elements in (64, 128, 63):
        summed(comm, elements)
    comm.broadcast(torch.ones(64), src=1)
    error, seconds = attempt(lambda: make(comm) if dist.get_rank() == 1 else comm.all_reduce(torch.ones(128)))
    return by_store(error, seconds)


def diverged_size(folder):
    return diverge(folder, lambda comm: comm.all_reduce(torch.ones(64)))


def diverged_function(folder):
    return diverge(folder, lambda comm: comm.broadcast(torch.ones(64), src=1))


def diverged_new(folder):
    return diverge(folder, lambda comm: comm.all_reduce(torch.ones(256)))


def diverged_backend(folder):
    return diverge(folder, lambda comm: comm.all_reduce(torch.ones(63)))


def diverged_argument(folder):
    return diverge(folder, lambda comm: comm.all_reduce(torch.ones(8, 16).T))


def dying(folder):
    """Rank 1 ends its process while the others are in a call."""
    comm = taccl_py.torch.load(Path(folder) / "ring")
    summed(comm, 64)
    if dist.get_rank() == 1:
        os._exit(7)
    summed(comm, 64)
    return {}


def late(folder):
    """One rank comes much later than the others, which is no error, also after a call that all have refused."""
    comm, rank = taccl_py.torch.load(Path(folder) / "ring", stall_seconds=0.1), dist.get_rank()
    summed(comm, 64)
    require(attempt(lambda: comm.all_reduce(torch.ones(32 if rank else 36)))[0])
    if rank == 1:
        time.sleep(3)
    return {"case": everywhere(lambda: summed(comm, 64))}


def by_store(error, seconds):
    """Errors of all ranks where the group cannot be used any more."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"error {dist.get_rank()}", json.dumps([error, seconds]))
    keys = [f"error {rank}" for rank in range(dist.get_world_size())]
    store.wait(keys)
    found = [json.loads(store.get(key)) for key in keys]
    store.add("read", 1)
    while dist.get_rank() == 0 and store.add("read", 0) < dist.get_world_size():
        time.sleep(0.01)
    return {"errors": [each[0] for each in found], "seconds": max(each[1] for each in found)}


def work(mode, folder):
    """What each process does."""
    torch.set_num_threads(1)
    logging.getLogger("taccl_py.torch").addHandler(KEPT)
    dist.init_process_group("gloo")
    result = globals()[mode](folder)
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps({"log": KEPT.lines, **result}))
    dist.destroy_process_group()


def main():
    num_ranks, mode, folder = sys.argv[1:]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": num_ranks}
    children = []
    for rank in range(int(num_ranks)):
        child = os.fork()
        if not child:
            os.environ |= {"RANK": str(rank)}
            work(mode, folder)
            return
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(max(codes, key=abs))


if __name__ == "__main__":
    main()
