"""Bound programs on tensors of torch, with ranks that are threads of this process."""

import importlib.util
import queue
import threading
from types import SimpleNamespace

import pytest

from taccl_py.collective import Buffer
from taccl_py.torch.bound import BoundProgram, MessageCarrier
from taccl_py.torch.compile import compile_program
from tests.execute.running import plan_of
from tests.patience import HANGS_SECONDS
from tests.verify.msccl.files import (
    direct_alltoall,
    pairs_allreduce,
    ring_allgather,
    ring_allreduce,
    ring_reducescatter,
)

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed; pip install '.[torch]'"
)


class Post(dict):
    """Messages between threads by source, target and tag."""

    def __missing__(self, key):
        return self.setdefault(key, queue.Queue())


def thread_wire(post, rank):
    """What torch.distributed is to one rank: messages are handed over, and those that come are copied when somebody waits."""

    def isend():
        """Only its name is needed."""

    def exchange(operations):
        works = []
        for sends, tensor, peer, _, tag in operations:
            if sends is isend:
                post[rank, peer, tag].put(tensor.clone())
            else:
                works.append(
                    SimpleNamespace(
                        wait=lambda tensor=tensor, key=(peer, rank, tag): tensor.copy_(
                            post[key].get(timeout=HANGS_SECONDS)
                        )
                    )
                )
        return works

    return SimpleNamespace(isend=isend, irecv=object(), P2POp=lambda *words: words, batch_isend_irecv=exchange)


def run_all(file, inputs, outputs, *, in_place, chunk_elements, as_bytes=None):
    """Run all ranks of a file, with peers that torch counts differently in its whole world."""
    import torch

    program = compile_program(plan_of(file), in_place=in_place)
    peers, post, errors = [10 + rank for rank in range(program.num_ranks)], Post(), []

    def work(rank):
        bound = BoundProgram(program, rank, peers)
        buffers = {Buffer.SCRATCH: torch.empty(bound.scratch_chunks * chunk_elements, dtype=outputs[rank].dtype)}
        if in_place:
            longer = Buffer.INPUT if program.input_chunks > program.output_chunks else Buffer.OUTPUT
            buffers[longer] = max(inputs[rank], outputs[rank], key=len)
        else:
            buffers |= {Buffer.INPUT: inputs[rank], Buffer.OUTPUT: outputs[rank]}
        try:
            bound.run(
                buffers, chunk_elements, MessageCarrier(thread_wire(post, peers[rank]), None, 7, as_bytes), torch.add
            )
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(program.num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGS_SECONDS)
    assert errors == []
    assert all(each.empty() for each in post.values())


def drawn(count, elements, data_type="int64"):
    import torch

    return [torch.randint(-9, 9, (elements,)).to(getattr(torch, data_type)) for _ in range(count)]


@pytest.mark.parametrize("make", [ring_allreduce, pairs_allreduce])
@pytest.mark.parametrize("data_type", ["float32", "bfloat16", "int16"])
def test_a_sum_is_in_all_tensors(make, data_type):
    tensors = drawn(4, 12, data_type)
    total = sum(tensors)
    run_all(make(4), tensors, tensors, in_place=True, chunk_elements=3)
    assert all((tensor == total).all() for tensor in tensors)


def test_out_of_place_the_inputs_stay():
    import torch

    tensors = drawn(4, 12)
    before, outputs = [tensor.clone() for tensor in tensors], [torch.zeros(12, dtype=torch.int64) for _ in tensors]
    run_all(ring_allreduce(4), tensors, outputs, in_place=False, chunk_elements=3)
    assert all((output == sum(before)).all() for output in outputs)
    assert all((tensor == old).all() for tensor, old in zip(tensors, before, strict=True))


def test_parts_are_gathered_scattered_and_exchanged():
    import torch

    parts, outputs = drawn(3, 2), [torch.zeros(6, dtype=torch.int64) for _ in range(3)]
    run_all(ring_allgather(3), parts, outputs, in_place=False, chunk_elements=2)
    assert all((output == torch.cat(parts)).all() for output in outputs)

    whole, outputs = drawn(3, 6), [torch.zeros(2, dtype=torch.int64) for _ in range(3)]
    total = sum(whole)
    run_all(ring_reducescatter(3), whole, outputs, in_place=False, chunk_elements=2)
    assert torch.equal(torch.cat(outputs), total)

    whole, outputs = drawn(3, 6), [torch.zeros(6, dtype=torch.int64) for _ in range(3)]
    run_all(direct_alltoall(3), whole, outputs, in_place=False, chunk_elements=2)
    for rank, output in enumerate(outputs):
        assert torch.equal(output, torch.cat([each[2 * rank : 2 * rank + 2] for each in whole]))


def test_types_that_a_backend_does_not_know_travel_as_bytes():
    import torch

    parts, outputs = drawn(3, 2, "complex64"), [torch.zeros(6, dtype=torch.complex64) for _ in range(3)]
    run_all(ring_allgather(3), parts, outputs, in_place=False, chunk_elements=2, as_bytes=torch.uint8)
    assert all((output == torch.cat(parts)).all() for output in outputs)
