"""Queues and flags: how long queues must be, who waits for whom, and agreement with the naive runner."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.runtimes import EXECUTOR
from taccl_py.verify.msccl.execute import ends, ends_without_queues, find_cycles, least_capacity
from taccl_py.verify.msccl.findings import Findings
from taccl_py.verify.msccl.grammar import parse_algorithm
from taccl_py.verify.msccl.operations import KernelProgram, make_plan
from taccl_py.verify.msccl.text import read_document
from tests.verify.msccl.brute_force import BadRun, run_once
from tests.verify.msccl.files import Attributes, File, add, direct_alltoall, make_file, ring_allgather, step


def plan_of(file: File) -> KernelProgram:
    findings = Findings()
    algorithm = parse_algorithm(read_document(file.text(), findings), EXECUTOR, findings)
    assert algorithm is not None
    assert findings.violations() == ()
    return make_plan(algorithm)


def gets_stuck(file: File, capacity: int, chunks_per_message: int) -> bool:
    try:
        run_once(file, None, False, capacity, chunks_per_message, 0)
    except BadRun as bad:
        return "stuck" in str(bad)
    return False


def crossing(messages: int, cnt: int) -> File:
    """Both ranks send all messages before they receive any."""
    n = messages * cnt
    file = make_file("alltoall", 2, 2 * n, (2 * n, 2 * n, 0), inplace=0)
    for rank in range(2):
        steps = [step("s", f"i{k * cnt}", cnt=cnt) for k in range(messages)]
        steps += [step("r", dst=f"o{k * cnt}", cnt=cnt) for k in range(messages)]
        add(file, rank, 1 - rank, 1 - rank, steps)
    return file


def test_what_crosses_must_fit_into_the_queues() -> None:
    plan = plan_of(crossing(3, 4))
    assert [least_capacity(plan, chunks).capacity for chunks in (1, 2, 3, 4, 71)] == [12, 6, 6, 3, 3]
    assert not ends(plan, 4, 2)
    assert ends(plan, 4, 3)


def test_a_ring_that_forwards_needs_a_second_slot() -> None:
    """With one slot everybody holds a message that he could pass on only after the next one has taken his."""
    assert least_capacity(plan_of(ring_allgather(4)), 1).capacity == 2


def test_a_direct_exchange_needs_one_slot() -> None:
    assert least_capacity(plan_of(direct_alltoall(4)), 1).capacity == 1


def test_the_order_has_every_operation_after_those_that_it_needs() -> None:
    plan = plan_of(ring_allgather(4, 2))
    order = least_capacity(plan, 1).order
    assert sorted(order) == list(range(len(plan.operations)))
    position = {index: place for place, index in enumerate(order)}
    for block in plan.blocks:
        places = [position[operation.index] for operation in block.operations]
        assert places == sorted(places)


def test_no_queue_is_long_enough_when_everybody_receives_first() -> None:
    file = ring_allgather(3)
    for gpu in file.gpus:
        gpu.blocks[0].steps.insert(0, gpu.blocks[0].steps.pop())
    plan = plan_of(file)
    assert least_capacity(plan, 1).capacity is None
    (cycle,) = find_cycles(plan, 1, None)
    assert cycle.where == "gpu 0 tb 0 step 0"
    assert cycle.what == (
        "it waits for data from gpu 2, gpu 2 tb 0 step 0 waits for data from gpu 1,"
        " gpu 1 tb 0 step 0 waits for data from gpu 0; each waits for the next one for ever"
    )


def test_a_wait_for_a_flag_that_is_never_raised_is_told_as_such() -> None:
    file = direct_alltoall(2)
    file.step(0, 1, 0).update(depid=0, deps=0)
    cycles = find_cycles(plan_of(file), 1, None)
    assert [(cycle.where, cycle.what) for cycle in cycles] == [
        ("gpu 0 tb 1 step 0", "it waits for step 0 of tb 0, at or after which no flag is raised; which never comes"),
    ]


def test_two_separate_cycles_are_both_reported() -> None:
    file = make_file("alltoall", 4, 4, (4, 4, 0), inplace=0)
    for rank in range(4):
        peer = rank ^ 1
        add(file, rank, peer, peer, [step("r", dst=f"o{peer}"), step("s", f"i{peer}")])
    assert [cycle.where for cycle in find_cycles(plan_of(file), 1, None)] == [
        "gpu 0 tb 0 step 0",
        "gpu 2 tb 0 step 0",
    ]


def random_traffic(chance: random.Random) -> File:
    """Random messages between three ranks, some forwarded, some waiting for flags; many get stuck."""
    file = make_file("alltoall", 3, 6, (6, 6, 0), inplace=0)
    ends_of: dict[tuple[int, int], dict[str, int]] = {}  # (rank, threadblock) -> its peers
    for rank in range(3):
        for block in range(2):
            peers = {"send": (rank + 1 + block) % 3, "recv": (rank - 1 - (block ^ chance.randrange(2))) % 3}
            ends_of[rank, block] = peers
        if ends_of[rank, 0]["recv"] == ends_of[rank, 1]["recv"]:
            ends_of[rank, 1]["recv"] = 3 - rank - ends_of[rank, 0]["recv"]
    steps: dict[tuple[int, int], list[Attributes]] = {key: [] for key in ends_of}
    sends = {(rank, peers["send"]): (rank, block) for (rank, block), peers in ends_of.items()}
    receives = {(peers["recv"], rank): (rank, block) for (rank, block), peers in ends_of.items()}
    counts: dict[tuple[int, int], list[int]] = {link: [] for link in sends}
    for _ in range(chance.randint(2, 12)):
        link = chance.choice(sorted(sends))
        counts[link].append(chance.randint(1, 3))
    for link, sizes in counts.items():
        steps[sends[link]] += [step("s", cnt=size) for size in sizes]
        steps[receives[link]] += [step("r", cnt=size) for size in sizes]
    for (rank, block), chain in steps.items():
        order = sorted(range(len(chain)), key=lambda k: (k % 3, chance.random()) if chance.random() < 0.5 else (k, 0.0))
        sent = iter([s for s in chain if s["type"] == "s"])
        received = iter([s for s in chain if s["type"] == "r"])
        mixed = [next(sent) if chain[k]["type"] == "s" else next(received) for k in order]
        fused: list[Attributes] = []
        for item in mixed:
            before = fused[-1] if fused else None
            if before and before["type"] == "r" and item["type"] == "s" and before["cnt"] == item["cnt"]:
                fused[-1] = step("rcs", cnt=int(str(item["cnt"])))
            else:
                fused.append(item)
        steps[rank, block] = fused
    for (rank, block), chain in steps.items():
        other = steps[rank, 1 - block]
        if chain and other and chance.random() < 0.4:
            target = chance.randrange(len(other))
            other[target]["hasdep"] = 1
            chance.choice(chain).update(depid=1 - block, deps=target)
    for (rank, block), peers in sorted(ends_of.items()):
        add(file, rank, peers["send"], peers["recv"], steps[rank, block])
    return file


@settings(max_examples=250)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_random_traffic_gets_stuck_exactly_when_the_naive_runner_does(seed: int, chunks: int) -> None:
    file = random_traffic(random.Random(seed))
    plan = plan_of(file)
    need = least_capacity(plan, chunks).capacity
    for capacity in range(1, 5):
        stuck = gets_stuck(file, capacity, chunks)
        assert ends(plan, chunks, capacity) is not stuck
        assert stuck is (need is None or capacity < need)
        assert bool(find_cycles(plan, chunks, capacity)) is stuck


@settings(max_examples=150)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_what_ends_with_single_chunks_ends_with_any_number(seed: int, capacity: int) -> None:
    plan = plan_of(random_traffic(random.Random(seed)))
    if ends(plan, 1, capacity):
        assert all(ends(plan, chunks, capacity) for chunks in (2, 3, 71))


@settings(max_examples=300)
@given(st.integers(0, 10**6))
def test_what_ends_without_queues_ends_with_any(seed: int) -> None:
    plan = plan_of(random_traffic(random.Random(seed)))
    if ends_without_queues(plan):
        assert all(least_capacity(plan, chunks).capacity == 1 for chunks in (1, 2, 3, 71))


def test_programs_with_and_without_need_of_queues() -> None:
    chain = make_file("broadcast", 3, 4, (4, 4, 0), inplace=1)
    add(chain, 0, 1, -1, [step("s", "i0", cnt=4)])
    add(chain, 1, 2, 0, [step("rcs", dst="o0", cnt=4)])
    add(chain, 2, -1, 1, [step("r", dst="o0", cnt=4)])
    assert ends_without_queues(plan_of(chain))
    assert not ends_without_queues(plan_of(direct_alltoall(4)))  # both ends of each exchange send first
    assert not ends_without_queues(plan_of(crossing(3, 4)))
    assert not ends_without_queues(plan_of(ring_allgather(4)))


def test_what_is_passed_on_in_a_circle_needs_somebody_to_begin() -> None:
    file = make_file("alltoall", 3, 3, (3, 3, 0), inplace=0)
    for rank in range(3):
        add(file, rank, (rank + 1) % 3, (rank - 1) % 3, [step("rcs", dst="o0")])
    plan = plan_of(file)
    assert not ends_without_queues(plan)
    assert not ends(plan, 1, 9)


def test_flags_that_wait_for_each_other_are_seen_without_queues() -> None:
    file = direct_alltoall(2)
    file.step(0, 1, 0).update(depid=0, deps=0)
    assert not ends_without_queues(plan_of(file))  # a flag that nobody raises
    file.step(0, 0, 0).update(hasdep=1, depid=1, deps=0)
    file.step(0, 1, 0).update(hasdep=1)
    assert not ends_without_queues(plan_of(file))
