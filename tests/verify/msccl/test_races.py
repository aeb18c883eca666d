"""Races: random programs whose outcome depends on the order of things are called racy."""

from __future__ import annotations

import random
from functools import partial

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from taccl_py.runtimes import EXECUTOR
from taccl_py.verify.msccl import verify_program
from tests.verify.msccl.brute_force import World, find_bad_run, outcome
from tests.verify.msccl.files import Attributes, File, add, make_file, step

LENGTHS = {"i": 3, "o": 3, "s": 2}


TRAFFIC = [  # who sends, who forwards or receives, who receives what was forwarded: (rank, threadblock)
    ((0, 0), (1, 1), None), ((0, 0), (1, 1), (0, 1)), ((1, 1), (0, 1), None), ((1, 0), (0, 2), None),
]  # fmt: skip


def random_program(chance: random.Random) -> File:
    """Two ranks, three threadblocks each, random steps that never get stuck, and random dependencies between them."""
    file = make_file("allreduce", 2, 3, (3, 3, 2), inplace=chance.randint(0, 1), outofplace=1)
    steps: dict[tuple[int, int], list[Attributes]] = {(rank, block): [] for rank in range(2) for block in range(3)}

    def append(owner: tuple[int, int], kind: str, cnt: int) -> None:
        src, dst = chance.choice("iooss"), chance.choice("ooss")
        new = step(
            kind, f"{src}{chance.randint(0, LENGTHS[src] - cnt)}", f"{dst}{chance.randint(0, LENGTHS[dst] - cnt)}", cnt
        )
        rank = owner[0]
        others = [(b, k) for b in range(3) if b != owner[1] for k in range(len(steps[rank, b]))]
        if others and chance.random() < 0.5:
            depid, deps = chance.choice(others)
            steps[rank, depid][deps]["hasdep"] = 1
            new.update(depid=depid, deps=deps)
        steps[owner].append(new)

    for _ in range(chance.randint(3, 7)):
        cnt = chance.randint(1, 2)
        if chance.random() < 0.5:
            sender, middle, receiver = chance.choice(TRAFFIC)
            append(sender, "s", cnt)
            if receiver is not None:
                append(middle, chance.choice(["rcs", "rrs", "rrcs"]), cnt)
            append(receiver or middle, chance.choice(["r", "rrc"]), cnt)
        else:
            append((chance.randrange(2), chance.randrange(3)), chance.choice(["cpy", "re"]), cnt)
    for (rank, block), peers in {
        (0, 0): (1, -1, 0), (0, 1): (-1, 1, 0), (0, 2): (-1, 1, 1), (1, 0): (0, -1, 1), (1, 1): (0, 0, 0), (1, 2): (-1, -1, 0)
    }.items():  # fmt: skip
        add(file, rank, peers[0], peers[1], steps[rank, block], peers[2])
    return file


@settings(max_examples=250)
@given(st.integers(0, 10**6))
def test_an_outcome_that_varies_is_called_a_race(seed: int) -> None:
    file = random_program(random.Random(seed))
    violations = verify_program(file.text(), EXECUTOR).violations
    assume("reduce-chain-count" not in {violation.rule for violation in violations})
    for in_place, other in ((False, "in place, "), (True, "out of place, ")):
        if file.attributes["inplace" if in_place else "outofplace"]:
            racy = any(v.rule == "race" and not v.what.startswith(other) for v in violations)
            racy_when_split = racy or any(v.rule == "max-bytes-unsafe" for v in violations)
            for chunks_per_message, refused in ((71, racy), (1, racy_when_split)):
                world = partial(World, file, in_place, 8, chunks_per_message)
                assert refused or len({outcome(world(), file, run) for run in range(12)}) == 1


def echoing_broadcast(onto: str, **changes: object) -> File:
    """Rank 0 sends both chunks of scratch from its start in one step, and stores what comes back where `onto` says."""
    file = make_file("broadcast", 2, 2, (2, 2, 3), inplace=1, outofplace=0, **changes)
    add(file, 0, 1, -1, [step("cpy", "i0", "s0", 2), step("s", "s0", "o0", 2)])
    add(file, 0, -1, 1, [step("r", "i0", onto, 2)])
    add(file, 1, 0, 0, [step("rcs", "i0", "o0", 2)])
    return file


def test_a_message_that_large_sizes_split_orders_less() -> None:
    """What comes back of chunk 0 may lie on chunk 1 before that is sent: LL moves 32 KiB at once, so two chunks of more are two messages."""
    (found,) = verify_program(echoing_broadcast("s1").text(), EXECUTOR, root=0).violations
    assert found.rule == "max-bytes-unsafe"
    assert "at most 32768" in found.what
    assert "it writes cells from s[1] on that step 1 of tb 0 reads" in found.what
    assert find_bad_run(echoing_broadcast("s1"), 0, 40) is not None


def test_a_split_message_still_orders_its_own_chunks() -> None:
    verdict = verify_program(echoing_broadcast("s0").text(), EXECUTOR, root=0)
    assert verdict.violations == ()
    assert verdict.facts is not None
    assert verdict.facts.safe_max_bytes is None
    assert find_bad_run(echoing_broadcast("s0"), 0, 40) is None


def test_a_file_for_sizes_whose_messages_are_whole_is_good() -> None:
    verdict = verify_program(echoing_broadcast("s1", maxBytes=1 << 15).text(), EXECUTOR, root=0)
    assert verdict.violations == ()
    assert verdict.facts is not None
    assert verdict.facts.safe_max_bytes == 1 << 15
