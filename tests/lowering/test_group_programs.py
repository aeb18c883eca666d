"""Programs of group schedules, rank by rank: right as a whole, and those of other ranks are images of the first one's."""

from dataclasses import replace

import pytest

from taccl_py.collective import Buffer, Kind
from taccl_py.errors import InvalidArtifact, LoweringError, Violation
from taccl_py.lowering import group_programs
from taccl_py.lowering.group_programs import find_disagreement, find_peers, join_ranks, lower_patterns, lower_ranks
from taccl_py.lowering.images import RankImages
from taccl_py.lowering.lower import LoweringOptions, PortOrder, lower
from taccl_py.lowering.msccl_xml import emit_xml
from taccl_py.lowering.program import Protocol
from taccl_py.pipeline.deliver import lower_group_and_verify, lower_one_rank
from taccl_py.pipeline.resolve import Request
from taccl_py.pipeline.search import synthesize_group
from taccl_py.runtimes import EXECUTOR, LEGACY, RCCL
from taccl_py.schedule.group import GROUP_KINDS
from taccl_py.synthesis.engine import Events
from taccl_py.verify.msccl import ProgramVerdict, verify_program

OPTIONS = LoweringOptions(EXECUTOR)


def group(machine, kind, size_bytes=1 << 20, chunks=1):
    request = Request(machine, kind, size_bytes=size_bytes, chunks_per_rank=chunks, engine="replicate")
    return synthesize_group(request, Events()).schedule


@pytest.mark.parametrize("kind", GROUP_KINDS)
@pytest.mark.parametrize("machine", ["ring:5", "torus:4x4", "hpn:3"])
def test_the_verifier_accepts_what_was_lowered_rank_by_rank(machine, kind):
    schedule = group(machine, kind)
    lowered = lower_group_and_verify(schedule, OPTIONS)
    assert lowered.verdict.violations == ()
    assert len(lowered.program.gpus) == schedule.topology.num_ranks


@pytest.mark.parametrize("kind", GROUP_KINDS)
@pytest.mark.parametrize(("machine", "size_bytes"), [("hpn:3", 1 << 26), ("switch:6", 1 << 20)])
def test_where_ports_are_shared_the_xml_takes_as_long_as_the_schedule(machine, size_bytes, kind):
    schedule = group(machine, kind, size_bytes)
    lowered = lower_group_and_verify(schedule, OPTIONS)
    assert lowered.replay.makespan_us == pytest.approx(schedule.makespan_us)
    assert lowered.port_order is PortOrder.SENDS


@pytest.mark.parametrize(("machine", "kind"), [("ndv2-x2", Kind.ALLGATHER), ("dgx1", Kind.ALLTOALL)])
def test_where_ranks_differ_those_of_a_role_do_the_same(machine, kind):
    schedule = group(machine, kind)
    lowered = lower_group_and_verify(schedule, OPTIONS)
    assert lowered.verdict.violations == ()
    for rank, gpu in enumerate(lowered.program.gpus):
        root = lowered.program.gpus[schedule.root_of(rank)]
        assert [len(tb.steps) for tb in gpu.threadblocks] == [len(tb.steps) for tb in root.threadblocks]


def test_a_small_schedule_whose_roles_do_not_fit_together_is_lowered_as_a_whole(monkeypatch):
    schedule = group("dgx1", Kind.ALLGATHER)
    monkeypatch.setattr("taccl_py.pipeline.deliver.lower_ranks", _disagreeing)
    assert lower_group_and_verify(schedule, OPTIONS).verdict.violations == ()
    monkeypatch.setattr("taccl_py.pipeline.deliver.MOST_WHOLE", 10)
    with pytest.raises(LoweringError, match="no agreement"):
        lower_group_and_verify(schedule, OPTIONS)


def test_up_to_which_size_ranks_do_not_stop_is_seen_of_all_of_them(monkeypatch):
    """Delegates in two nodes send to each other before they receive, and connections hold two operations of Simple."""
    schedule = group_of_nodes("dgx2", 2, Kind.ALLTOALL, 1 << 24)
    monkeypatch.setattr("taccl_py.pipeline.deliver.lower_and_verify", lambda *_: pytest.fail("lowered as a whole"))
    simple = replace(OPTIONS, protocol=Protocol.SIMPLE)
    lowered = lower_group_and_verify(schedule, simple)
    assert (lowered.program.max_bytes, lowered.verdict.violations) == (1 << 25, ())
    monkeypatch.setattr("taccl_py.pipeline.deliver.MOST_WHOLE", 10)
    with pytest.raises(LoweringError, match="would wait for each other for ever; use taccl synth"):
        lower_group_and_verify(schedule, replace(simple, max_bytes=1 << 26))


@pytest.mark.parametrize(("rule", "error"), [("race", InvalidArtifact), ("fifo-deadlock", LoweringError)])
def test_an_error_is_raised_unless_ranks_that_were_lowered_alone_wait_for_each_other(monkeypatch, rule, error):
    schedule = group("dgx1", Kind.ALLGATHER)
    verdict = ProgramVerdict(None, (Violation("gpu 0", rule, "made up"),), ())
    monkeypatch.setattr("taccl_py.pipeline.deliver.verify_program", lambda *_, **__: verdict)
    whole = []
    monkeypatch.setattr("taccl_py.pipeline.deliver.lower_and_verify", lambda *_: whole.append(1))
    if error is LoweringError:
        assert (lower_group_and_verify(schedule, OPTIONS), whole) == (None, [1])
        monkeypatch.setattr("taccl_py.pipeline.deliver.MOST_WHOLE", 10)
    with pytest.raises(error):
        lower_group_and_verify(schedule, OPTIONS)


def test_a_rank_of_what_is_lowered_as_a_whole_is_a_part_of_that(monkeypatch):
    schedule = group("dgx1", Kind.ALLGATHER)
    by_ranks = lower_group_and_verify(schedule, OPTIONS).program
    monkeypatch.setattr("taccl_py.pipeline.deliver.lower_ranks", _disagreeing)
    whole = lower_group_and_verify(schedule, OPTIONS).program
    assert whole != by_ranks
    program, _ = lower_one_rank(schedule, 3, OPTIONS)
    assert program.gpus[3] == whole.gpus[3]
    assert not any(gpu.threadblocks for gpu in program.gpus if gpu.rank != 3)


def _disagreeing(*_):
    raise LoweringError("no agreement", runtime="executor", limit="connection")


def test_links_that_are_images_of_each_other_get_as_many_channels():
    """24 chunks of 16 ranks are too many steps for one threadblock, first on one side of a connection, later on the other."""
    schedule = group("hpn:2", Kind.ALLGATHER, 1 << 24, chunks=24)
    lowered = lower_group_and_verify(schedule, OPTIONS)
    assert lowered.program.num_channels > 1
    assert lowered.replay.makespan_us == pytest.approx(schedule.makespan_us)


def test_without_room_for_turns_messages_pass_ports_as_they_come(monkeypatch):
    schedule = group("hpn:2", Kind.ALLREDUCE)
    monkeypatch.setattr("taccl_py.lowering.group_programs._lower_one", _refuses_turns(group_programs._lower_one))
    lowered = lower_group_and_verify(schedule, OPTIONS)
    assert lowered.verdict.violations == ()
    assert lowered.port_order is PortOrder.FREE


def _refuses_turns(lower_one):
    def lowered(schedule, patterns, rank):
        if patterns.options.port_order is not PortOrder.FREE:
            raise LoweringError("no room", runtime="executor", limit="threadblocks")
        return lower_one(schedule, patterns, rank)

    return lowered


def group_of_nodes(machine, nodes, kind, size_bytes=1 << 20):
    request = Request(machine, kind, nodes=nodes, size_bytes=size_bytes, chunks_per_rank=1, engine="replicate")
    return synthesize_group(request, Events()).schedule


@pytest.mark.parametrize("runtime", [RCCL, LEGACY])
def test_every_runtime_is_served(runtime):
    assert lower_group_and_verify(group("torus:3x3", Kind.ALLREDUCE), LoweringOptions(runtime)).verdict.violations == ()


def test_rank_0_is_lowered_as_among_all_the_others():
    schedule = group("torus:4x4", Kind.ALLGATHER)
    assert (
        next(lower_ranks(schedule, lower_patterns(schedule, OPTIONS), [0])).gpus[0]
        == lower(schedule.expanded(), OPTIONS).gpus[0]
    )


def test_ranks_do_what_rank_0_does_with_names_moved():
    """On a ring of 4 everyone sends to the next rank and to the one before, and rank 3 has shares 3, 0, 1, 2 for 0, 1, 2, 3."""
    schedule = group("ring:4", Kind.ALLGATHER, chunks=2)
    programs = list(lower_ranks(schedule, lower_patterns(schedule, replace(OPTIONS, instances=2)), range(4)))
    assert [gpu.rank for gpu in programs[3].gpus if gpu.threadblocks] == [3]
    for first, last in zip(programs[0].gpus[0].threadblocks, programs[3].gpus[3].threadblocks, strict=True):
        assert (last.channel, len(last.steps)) == (first.channel, len(first.steps))
        for peer, image in ((first.send_peer, last.send_peer), (first.recv_peer, last.recv_peer)):
            assert image == (peer + 3) % 4 if peer >= 0 else image == -1
        for step, image in zip(first.steps, last.steps, strict=True):
            if step.dst.buffer is Buffer.OUTPUT and step.dst.offset >= 0:
                assert image.dst.offset == (step.dst.offset + 3 * 4) % 16  # 4 cells are a share
            assert (image.op, image.count, image.depends_on) == (step.op, step.count, step.depends_on)


def test_where_neighbours_would_be_torn_apart_every_rank_is_lowered_by_itself(monkeypatch):
    """In AllToAll by rails all that a rank has for a node is one step of several shares, and ranks of a node are rotated too."""
    monkeypatch.setattr("taccl_py.synthesis.matching.replicate.delegated", lambda _demand: None)
    schedule = group("hpn:3", Kind.ALLTOALL)
    (program,) = lower_ranks(schedule, lower_patterns(schedule, OPTIONS), [0])
    assert any(step.count > 1 for tb in program.gpus[0].threadblocks for step in tb.steps)
    assert not RankImages(schedule, [program.gpus[0]], 1).are_whole
    assert lower_group_and_verify(schedule, OPTIONS).verdict.violations == ()


@pytest.mark.parametrize(("machine", "kind"), [("hpn:3", Kind.ALLTOALL), ("ring:6", Kind.ALLGATHER)])
def test_with_seams_no_step_is_torn_apart(monkeypatch, machine, kind):
    monkeypatch.setattr("taccl_py.synthesis.matching.replicate.delegated", lambda _demand: None)
    schedule = group(machine, kind)
    patterns = lower_patterns(schedule, OPTIONS, schedule.seams)
    images = RankImages(schedule, [patterns.programs[root].gpus[root] for root in schedule.roots], 1)
    assert images.are_whole
    programs = list(lower_ranks(schedule, patterns, range(schedule.topology.num_ranks)))
    assert [program.gpus[rank] for rank, program in enumerate(programs)] == [
        images.of(rank) for rank in range(schedule.topology.num_ranks)
    ]
    joined = join_ranks(programs)
    assert verify_program(emit_xml(joined, EXECUTOR), EXECUTOR, kind=kind).violations == ()


def test_seams_are_where_a_translation_parts_neighbours():
    """Nodes of 8 ranks are rotated as a whole, or their ranks as well; of each share the last chunk is before the seam."""
    assert group("hpn:9", Kind.ALLTOALL, 1 << 14).seams == {8 * node + 7 for node in range(9)}
    assert group("ring:4", Kind.ALLGATHER, chunks=2).seams == {1, 3, 5, 7}


def test_where_neighbours_stay_together_other_ranks_are_images():
    """By delegates AllToAll is rotated by whole nodes, and no step goes from one node's shares to the next one's."""
    schedule = group("hpn:9", Kind.ALLTOALL, 1 << 14)
    assert len(schedule.roots) == 8
    patterns = [
        next(lower_ranks(schedule, lower_patterns(schedule, OPTIONS), [root])).gpus[root] for root in schedule.roots
    ]
    assert any(
        step.count > 1 and step.src.buffer is Buffer.INPUT for tb in patterns[0].threadblocks for step in tb.steps
    )
    assert RankImages(schedule, patterns, 1).are_whole
    lowered = lower_group_and_verify(schedule, OPTIONS)
    assert lowered.verdict.violations == ()
    assert lowered.replay.makespan_us == pytest.approx(schedule.makespan_us)


def test_ranks_of_different_roles_agree_on_channels(monkeypatch):
    """A delegate copies what it sends on, step by step, and needs more channels for a link than the one that receives."""
    schedule = group("hpn:9", Kind.ALLTOALL, 1 << 14)
    options = LoweringOptions(replace(EXECUTOR, max_steps=20))

    def disagreement():
        gpus = [
            program.gpus[rank]
            for rank, program in enumerate(lower_ranks(schedule, lower_patterns(schedule, options), range(8)))
        ]
        return find_disagreement(gpus[0], {peer: gpus[peer] for peer in find_peers(gpus[0]) if peer < 8})

    assert disagreement() is None
    monkeypatch.setattr("taccl_py.lowering.group_programs._MOST_ROUNDS", 1)
    assert disagreement() == "ranks 0 and 2 on channel 0"


def test_ranks_of_different_roles_agree_on_which_channels(monkeypatch):
    """Three peers go on a channel, and which of them do a rank that only knows its own links cannot tell."""
    monkeypatch.setattr("taccl_py.lowering.channels.MAX_PEERS_PER_CHANNEL", 3)
    schedule = group("hpn:9", Kind.ALLTOALL, 1 << 14)
    gpus = [
        program.gpus[rank]
        for rank, program in enumerate(lower_ranks(schedule, lower_patterns(schedule, OPTIONS), range(72)))
    ]
    assert {tb.channel for tb in gpus[0].threadblocks} == {0, 1}
    assert all(
        find_disagreement(gpus[root], {peer: gpus[peer] for peer in find_peers(gpus[root])}) is None
        for root in range(8)
    )


def test_a_part_is_what_a_rank_sends_and_receives():
    schedule = group("ring:4", Kind.ALLTOALL)
    part = schedule.part(2)
    assert set(part.messages) == {*schedule.sent_by(2), *schedule.received_by(2)}
    assert part.scratch[2] == schedule.expanded().scratch[2]


def test_sides_that_do_not_agree_are_found():
    schedule = group("ring:4", Kind.ALLGATHER)
    gpus = [
        program.gpus[rank]
        for rank, program in enumerate(lower_ranks(schedule, lower_patterns(schedule, OPTIONS), range(4)))
    ]
    assert find_peers(gpus[0]) == [1, 3]
    assert find_disagreement(gpus[0], {1: gpus[1], 3: gpus[3]}) is None
    shorter = replace(gpus[1], threadblocks=tuple(replace(tb, steps=tb.steps[:-1]) for tb in gpus[1].threadblocks))
    assert "ranks" in find_disagreement(gpus[0], {1: shorter})


def test_links_of_an_orbit_have_one_number_at_both_ends():
    schedule = group("torus:3x3", Kind.ALLGATHER)
    ends = schedule.topology.links
    orbit_of = schedule.orbit_of(range(len(ends)))
    # 9 ranks, 4 links each: the same orbits leave and enter every rank.
    for rank in range(9):
        for found in (
            [i for i, k in enumerate(ends) if k.src == rank],
            [i for i, k in enumerate(ends) if k.dst == rank],
        ):
            assert sorted(orbit_of[link] for link in found) == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_rank_with_more_peers_than_a_channel_takes_agrees_with_them():
    """Most of the 33 ranks of its number in other nodes, and of the 7 in its own, with 32 on a channel."""
    program, _ = lower_one_rank(group("hpn:34", Kind.ALLGATHER, 1 << 30), 128, OPTIONS)
    assert len(find_peers(program.gpus[128])) > 32
    assert program.num_channels > 1


def test_sides_that_do_not_agree_are_refused(monkeypatch):
    monkeypatch.setattr("taccl_py.lowering.group_programs.find_disagreement", lambda *_: "ranks 0 and 1 on channel 0")
    with pytest.raises(LoweringError, match="taccl synth"):
        lower_one_rank(group("ring:4", Kind.ALLGATHER), 0, OPTIONS)


@pytest.mark.slow
def test_512_ranks_are_lowered_in_the_memory_of_one():
    schedule = group("torus:8x8x8", Kind.ALLGATHER, 512 << 20)
    program, text = lower_one_rank(schedule, 300, OPTIONS)
    assert len(text) < 1_000_000
    assert sum(len(tb.steps) for tb in program.gpus[300].threadblocks) >= 511
