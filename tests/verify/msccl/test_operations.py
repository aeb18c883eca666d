"""What the runtimes make of steps: fused reductions, collected dependencies and the kernel's own count."""

from __future__ import annotations

from taccl_py.runtimes import EXECUTOR
from taccl_py.verify.msccl.findings import Findings
from taccl_py.verify.msccl.grammar import Threadblock, parse_algorithm
from taccl_py.verify.msccl.operations import FusedThreadblock, fuse, make_plan
from taccl_py.verify.msccl.text import read_document
from tests.verify.msccl.files import Attributes, File, add, make_file, nop, pair_allreduce, step


def parsed(file: File) -> list[Threadblock]:
    findings = Findings()
    algorithm = parse_algorithm(read_document(file.text(), findings), EXECUTOR, findings)
    assert algorithm is not None
    return [tb for gpu in algorithm.gpus for tb in gpu.threadblocks]


def fused(steps: list[Attributes]) -> FusedThreadblock:
    file = make_file("allreduce", 2, 2, (2, 2, 2))
    add(file, 0, -1, -1, steps)
    return fuse(parsed(file)[0])


def lengths(steps: list[Attributes]) -> list[int]:
    return [len(operation.steps) for operation in fused(steps).operations]


def test_equal_reductions_become_one() -> None:
    assert lengths([step("re", "s0", "o0"), step("re", "s1", "o0"), step("re", "s0", "o0")]) == [3]


def test_reductions_stay_apart_when_something_differs() -> None:
    first = step("re", "s0", "o0")
    assert lengths([first, step("re", "s0", "o1")]) == [1, 1]
    assert lengths([first, step("re", "s0", "s1")]) == [1, 1]
    assert lengths([first, step("re", "i0", "o0")]) == [1, 1]
    assert lengths([first, step("re", "s1", "o0", after=(1, 0))]) == [1, 1]
    assert lengths([step("re", "s0", "o0", flag=1), step("re", "s1", "o0")]) == [1, 1]
    assert lengths([first, step("cpy"), step("re", "s1", "o0")]) == [1, 1, 1]


def test_a_nop_does_not_end_a_chain_and_its_dependency_moves_on() -> None:
    found = fused([step("re", "s0", "o0"), nop((1, 4)), step("re", "s1", "o0"), step("cpy", after=(2, 5))])
    assert [len(operation.steps) for operation in found.operations] == [2, 1]
    assert [(d.threadblock, d.step) for d in found.operations[1].collected] == [(1, 4), (2, 5)]


def test_the_sixteenth_reduction_ends_a_chain_and_later_ones_never_do() -> None:
    assert lengths([step("re", "s0", "o0")] * 40) == [16, 24]
    assert lengths([step("re", "s0", "o0", flag=1)] + [step("re", "s0", "o0")] * 20) == [1, 15, 5]


def test_dependencies_after_the_last_step_are_dropped() -> None:
    assert [(d.threadblock, d.step) for d in fused([step("cpy"), nop((1, 0)), nop((2, 0))]).dropped] == [(1, 0), (2, 0)]


def test_the_kernel_counts_like_the_file_when_nops_carry_dependencies() -> None:
    steps = [
        step("cpy"), nop((1, 0)), nop((1, 1)), step("re", "s0", "o0", after=(1, 2)), step("re", "s1", "o0"),
        step("cpy"), nop((1, 0)), step("cpy", after=(1, 1)),
    ]  # fmt: skip
    operations = fused(steps).operations
    assert [operation.flag for operation in operations] == [0, 4, 5, 7]
    assert [operation.last.index for operation in operations] == [0, 4, 5, 7]


def test_the_kernel_does_not_count_a_nop_without_a_dependency() -> None:
    assert [operation.flag for operation in fused([step("nop"), step("cpy"), step("cpy")]).operations] == [0, 1]


def test_a_plan_knows_both_ends_of_each_queue_and_the_flag_that_ends_each_wait() -> None:
    findings = Findings()
    algorithm = parse_algorithm(read_document(pair_allreduce().text(), findings), EXECUTOR, findings)
    assert algorithm is not None
    plan = make_plan(algorithm)
    assert [(c.src, c.dst, c.channel) for c in plan.connections] == [(0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1)]
    assert plan.senders == (0, 1, 3, 4)
    assert plan.receivers == (3, 4, 0, 1)
    reduction = plan.blocks[2].operations[1]
    assert [plan.operations[wait.operation].block for wait in reduction.waits if wait.operation is not None] == [0, 1]
    assert [(a.buffer, a.offset) for a in reduction.reads] == [("o", 0), ("s", 0)]
    assert [(a.buffer, a.offset) for a in reduction.writes] == [("o", 0)]


def test_a_wait_ends_with_the_first_flag_that_is_high_enough() -> None:
    file = pair_allreduce()
    file.gpus[0].blocks[0].steps = [step("cpy"), step("cpy", flag=1), step("cpy"), step("cpy", flag=1)]
    file.gpus[0].blocks[2].steps = [step("cpy", after=(0, number)) for number in range(5)]
    findings = Findings()
    algorithm = parse_algorithm(read_document(file.text(), findings), EXECUTOR, findings)
    assert algorithm is not None
    waits = [operation.waits[0].operation for operation in make_plan(algorithm).blocks[2].operations]
    assert waits == [1, 1, 3, 3, None]
