"""Where one rank stands for all, the verifier says what it says when it looks at all of them."""

import random
from dataclasses import replace
from functools import cache

import pytest

from taccl_py.collective import Address, Buffer, Kind
from taccl_py.lowering.group_programs import join_ranks, lower_patterns, lower_ranks
from taccl_py.lowering.images import RankImages as Copies
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.lowering.msccl_xml import emit_xml
from taccl_py.pipeline.resolve import Request
from taccl_py.pipeline.search import synthesize_group
from taccl_py.runtimes import EXECUTOR, RCCL
from taccl_py.schedule.group import GROUP_KINDS
from taccl_py.synthesis.engine import Events
from taccl_py.verify.msccl import images
from taccl_py.verify.msccl.images import find_images
from taccl_py.verify.msccl.verifier import verify_program

NEVER = 1 << 30


def lowered(machine, kind, chunks=1, runtime=EXECUTOR):
    """A group schedule and the program of all its ranks."""
    request = Request(machine, kind, size_bytes=1 << 20, chunks_per_rank=chunks, engine="replicate")
    schedule = synthesize_group(request, Events()).schedule
    ranks = range(schedule.topology.num_ranks)
    return schedule, join_ranks(list(lower_ranks(schedule, lower_patterns(schedule, LoweringOptions(runtime)), ranks)))


def with_pattern(schedule, program, pattern):
    """The program in which all ranks do what the pattern says."""
    copies = Copies(schedule, [pattern], 1)
    return replace(program, gpus=tuple(copies.of(rank) for rank in range(len(program.gpus))))


def verified_one_for_all(text, runtime, monkeypatch):
    monkeypatch.setattr(images, "FEWEST_RANKS", 2)
    return verify_program(text, runtime)


def verified_rank_by_rank(text, runtime, monkeypatch):
    monkeypatch.setattr(images, "FEWEST_RANKS", NEVER)
    return verify_program(text, runtime)


MACHINES = ("ring:5", "torus:3x4", "twisted:2x4", "hpn:3", "hypercube:3")


@pytest.mark.parametrize(
    ("machine", "kind", "runtime"),
    [
        (machine, kind, (EXECUTOR, RCCL)[(row + column) % 2])
        for row, machine in enumerate(MACHINES)
        for column, kind in enumerate(GROUP_KINDS)
    ],
)
def test_with_images_and_without_the_facts_are_the_same(machine, kind, runtime, monkeypatch):
    _, program = lowered(machine, kind, chunks=1 if kind is Kind.ALLTOALL else 2, runtime=runtime)
    text = emit_xml(program, runtime)
    found = verified_one_for_all(text, runtime, monkeypatch)
    assert found == verified_rank_by_rank(text, runtime, monkeypatch)
    assert found.violations == ()


def test_images_are_rotations_on_a_ring(monkeypatch):
    monkeypatch.setattr(images, "FEWEST_RANKS", 2)
    _, program = lowered("ring:4", Kind.ALLGATHER)
    found = find_images(emit_xml(program, EXECUTOR), EXECUTOR, None)
    assert found is not None
    assert found.to.tolist() == [[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1], [3, 0, 1, 2]]
    assert found.root.tolist() == [0] * 4
    # What rank 1 sends to rank 0 is like what rank 0 sends to rank 3.
    assert [there for (there,) in found.wires.mirror] == [0, 3, 2, 1]


def changed(pattern, rng):
    """The pattern with one thing that is wrong, or only different."""
    blocks = list(pattern.threadblocks)
    number = rng.choice([index for index, tb in enumerate(blocks) if tb.steps])
    tb, steps = blocks[number], list(blocks[number].steps)
    at = rng.randrange(len(steps))
    step = steps[at]
    what = rng.choice(["drop", "twice", "swap", "free", "offset", "from", "flag", "peer", "channel"])
    if what == "drop":
        del steps[at]
    elif what == "twice":
        steps.insert(at, step)
    elif what == "swap":
        other = rng.randrange(len(steps))
        steps[at], steps[other] = steps[other], steps[at]
    elif what == "free":
        steps[at] = replace(step, depends_on=None)
    elif what == "offset":
        alike = [other.dst for other in steps if other.dst.buffer is step.dst.buffer]
        steps[at] = replace(step, dst=rng.choice(alike))
    elif what == "from":
        steps[at] = replace(step, src=rng.choice(steps).src)
    elif what == "flag":
        steps[at] = replace(step, has_dependent=not step.has_dependent)
    elif what == "peer":
        other = rng.choice(blocks)
        tb = replace(tb, send_peer=other.send_peer if tb.send_peer >= 0 else -1)
    else:
        tb = replace(tb, channel=tb.channel + 1)
    blocks[number] = replace(tb, steps=tuple(steps))
    return replace(pattern, threadblocks=tuple(blocks))


@pytest.mark.parametrize("kind", GROUP_KINDS)
@pytest.mark.parametrize("machine", ["ring:5", "torus:2x3", "hpn:2"])
def test_with_images_and_without_the_errors_are_the_same_when_all_ranks_are_wrong_alike(machine, kind, monkeypatch):
    schedule, program = lowered(machine, kind)
    rng = random.Random(7)
    violations = 0
    for _ in range(12):
        pattern = changed(program.gpus[0], rng)
        text = emit_xml(with_pattern(schedule, program, pattern), EXECUTOR)
        right = verified_rank_by_rank(text, EXECUTOR, monkeypatch)
        assert verified_one_for_all(text, EXECUTOR, monkeypatch) == right
        violations += bool(right.violations)
    assert violations >= 4


@cache
def rotated(nodes, ranks=8):
    """AllToAll in which ranks of a node do different things, and those of other nodes do the same."""
    request = Request(f"hpn:{nodes}", Kind.ALLTOALL, size_bytes=1 << 14, engine="replicate")
    schedule = synthesize_group(request, Events()).schedule
    assert schedule.roots == tuple(range(ranks))
    return schedule, join_ranks(
        list(lower_ranks(schedule, lower_patterns(schedule, LoweringOptions(EXECUTOR)), range(nodes * ranks)))
    )


def test_one_rank_of_each_role_stands_for_those_of_other_nodes(monkeypatch):
    monkeypatch.setattr(images, "FEWEST_RANKS", 2)
    _, program = rotated(4)
    text = emit_xml(program, EXECUTOR)
    assert any(
        step.count > 1 and step.src.buffer is Buffer.INPUT for tb in program.gpus[0].threadblocks for step in tb.steps
    )
    found = find_images(text, EXECUTOR, None)
    assert found is not None
    assert found.root.tolist() == [rank % 8 for rank in range(32)]
    assert found.to[13].tolist() == [(rank + 8) % 32 for rank in range(32)]
    assert found.text.count("<gpu ") == 8
    # Rank 10 sends to rank 3 what is the image of what rank 2 sends to rank 27.
    assert found.wires.mirror[10][3] == 27
    verdict = verified_one_for_all(text, EXECUTOR, monkeypatch)
    assert verdict.violations == ()
    assert verdict == verified_rank_by_rank(text, EXECUTOR, monkeypatch)


def test_with_images_and_without_the_errors_are_the_same_when_all_ranks_of_a_role_are_wrong_alike(monkeypatch):
    schedule, program = rotated(3)
    rng = random.Random(5)
    violations = looked_at = 0
    for _ in range(16):
        patterns = list(program.gpus[:8])
        wrong = rng.randrange(8)
        patterns[wrong] = changed(patterns[wrong], rng)
        copies = Copies(schedule, patterns, 1)
        text = emit_xml(replace(program, gpus=tuple(copies.of(rank) for rank in range(24))), EXECUTOR)
        right = verified_rank_by_rank(text, EXECUTOR, monkeypatch)
        assert verified_one_for_all(text, EXECUTOR, monkeypatch) == right
        looked_at += find_images(text, EXECUTOR, None) is not None
        violations += bool(right.violations)
    assert violations >= 5
    assert looked_at >= 5


def test_with_images_and_without_the_errors_are_the_same_when_one_rank_of_a_role_is_wrong(monkeypatch):
    _, program = rotated(3)
    rng = random.Random(6)
    for _ in range(8):
        wrong = rng.randrange(8, 24)
        gpus = list(program.gpus)
        gpus[wrong] = changed(gpus[wrong], rng)
        text = emit_xml(replace(program, gpus=tuple(gpus)), EXECUTOR)
        assert verified_one_for_all(text, EXECUTOR, monkeypatch) == verified_rank_by_rank(text, EXECUTOR, monkeypatch)


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("number", ["70", "2147483647", "9" * 30, "9" * 5000])
@pytest.mark.parametrize("name", ["cnt", "srcoff", "send"])
def test_numbers_may_be_as_large_as_they_like(rank, number, name, monkeypatch):
    _, program = rotated(3)
    text = emit_xml(program, EXECUTOR)
    at = text.index(f' {name}="1"', text.index(f'<gpu id="{rank}"'))
    odd = f'{text[:at]} {name}="{number}"{text[at + len(name) + 5 :]}'
    found = verified_one_for_all(odd, EXECUTOR, monkeypatch)
    assert found.violations
    assert found == verified_rank_by_rank(odd, EXECUTOR, monkeypatch)


def test_shares_that_a_step_moves_together_must_be_neighbours_in_the_image(monkeypatch):
    """Ranks 8 to 15 have the right program but for two shares that change places, which steps of several shares cannot do."""
    monkeypatch.setattr(images, "FEWEST_RANKS", 2)
    _, program = rotated(3)
    names = {16: 17, 17: 16}
    gpus = list(program.gpus)
    for rank in range(8, 16):
        blocks = []
        for tb in gpus[rank].threadblocks:
            steps = []
            for step in tb.steps:
                ends = {}
                for end in ("src", "dst"):
                    address = getattr(step, end)
                    offset = address.offset
                    if address.buffer is not Buffer.SCRATCH and step.count == 1:
                        offset = names.get(offset, offset)
                    ends[end] = Address(address.buffer, offset)
                steps.append(replace(step, **ends))
            blocks.append(replace(tb, steps=tuple(steps)))
        gpus[rank] = replace(gpus[rank], threadblocks=tuple(blocks))
    text = emit_xml(replace(program, gpus=tuple(gpus)), EXECUTOR)
    assert find_images(text, EXECUTOR, None) is None
    assert verified_one_for_all(text, EXECUTOR, monkeypatch) == verified_rank_by_rank(text, EXECUTOR, monkeypatch)


def test_with_images_and_without_the_errors_are_the_same_when_one_rank_is_wrong(monkeypatch):
    _, program = lowered("torus:3x3", Kind.ALLREDUCE)
    rng = random.Random(11)
    for _ in range(25):
        wrong = rng.randrange(1, 9)
        gpus = list(program.gpus)
        gpus[wrong] = changed(gpus[wrong], rng)
        text = emit_xml(replace(program, gpus=tuple(gpus)), EXECUTOR)
        assert verified_one_for_all(text, EXECUTOR, monkeypatch) == verified_rank_by_rank(text, EXECUTOR, monkeypatch)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('<gpu id="3"', '<gpu id="4"'),
        ('<gpu id="3"', '<gpu  id="3"'),
        ('s="0" type', 's="00" type'),
        ('dstoff="', 'dstoff="0'),
        ('dstoff="', 'dstoff=" '),
        ("  </gpu>", "  </gpu><!-- last -->"),
        ("</algo>", ""),
        ('send="', 'send="99999999999999999999999'),
    ],
)
def test_text_that_is_odd_in_one_place_is_verified_as_ever(old, new, monkeypatch):
    _, program = lowered("torus:2x3", Kind.ALLGATHER)
    text = emit_xml(program, EXECUTOR)
    at = text.rindex(old)
    odd = text[:at] + new + text[at + len(old) :]
    assert verified_one_for_all(odd, EXECUTOR, monkeypatch) == verified_rank_by_rank(odd, EXECUTOR, monkeypatch)


@pytest.mark.parametrize(
    ("old", "new"),
    [('send="1"', 'send="6"'), ('recv="1"', 'recv="6"'), ('dstoff="1"', 'dstoff="6"'), ('srcoff="0"', 'srcoff="-1"')],
)
def test_rank_0_alone_may_name_what_does_not_exist(old, new, monkeypatch):
    _, program = lowered("torus:2x3", Kind.ALLGATHER)
    text = emit_xml(program, EXECUTOR)
    odd = text.replace(old, new, 1)
    assert odd.index(new) < odd.index('<gpu id="1"')
    found = verified_one_for_all(odd, EXECUTOR, monkeypatch)
    assert found.violations
    assert found == verified_rank_by_rank(odd, EXECUTOR, monkeypatch)


def test_ranks_whose_names_do_not_fit_together_are_verified_one_by_one(monkeypatch):
    """Each rank's text is an image of rank 0's, but in the image that is rank 2's, ranks 0 and 1 have changed places."""
    monkeypatch.setattr(images, "FEWEST_RANKS", 2)
    _, program = lowered("ring:4", Kind.ALLGATHER)
    text = emit_xml(program, EXECUTOR)
    assert find_images(text, EXECUTOR, None) is not None
    twisted = {0: 2, 1: 3, 2: 1, 3: 0}
    gpu, blocks = program.gpus[0], []
    for tb in gpu.threadblocks:
        steps = tuple(
            replace(step, **{end: moved(getattr(step, end), twisted) for end in ("src", "dst")}) for step in tb.steps
        )
        blocks.append(
            replace(tb, send_peer=twisted.get(tb.send_peer, -1), recv_peer=twisted.get(tb.recv_peer, -1), steps=steps)
        )
    gpus = list(program.gpus)
    gpus[2] = replace(gpu, rank=2, threadblocks=tuple(blocks))
    text = emit_xml(replace(program, gpus=tuple(gpus)), EXECUTOR)
    assert find_images(text, EXECUTOR, None) is None
    assert verified_one_for_all(text, EXECUTOR, monkeypatch).violations


def moved(address, names):
    """The address in the image; AllGather's output alone has a share for every rank, here of one chunk."""
    return Address(address.buffer, names.get(address.offset, -1)) if address.buffer == "o" else address
