"""Channels for NCCL and RCCL: rings and trees are found and read back, and nothing else is."""

from itertools import pairwise, permutations
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.baselines.library import Family, baselines_of
from taccl_py.baselines.nccl_graph import read_graphs
from taccl_py.collective import Collective, Kind
from taccl_py.discover.xml_dump import read_graph_dump
from taccl_py.errors import InputError, LoweringError
from taccl_py.lowering.nccl import (
    ChannelForm,
    NcclChannels,
    find_channels,
    lower_channels,
    read_channels,
    read_strings,
    write_graph,
    write_strings,
)
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.schedule.timing import build_schedule
from taccl_py.sketch.machine import load_machine
from taccl_py.topology.machines import formula_topology
from taccl_py.topology.model import Medium
from tests.lowering.chakra.cases import direct, gather_on_ring

GATHERS = (Kind.ALLGATHER, Kind.REDUCESCATTER)


def schedule_of(machine, kind, parts, moves):
    """Schedule of moves (step, src, dst, chunks, whether they are added)."""
    topology = formula_topology(machine)
    drafts = [
        UntimedMessage(topology.links_between[src, dst][0], chunks, step, step + 1, adds, packed=len(chunks) > 1)
        for step, src, dst, chunks, adds in sorted(moves)
    ]
    return build_schedule(topology, Collective(kind, topology.num_ranks, parts), 1e6, drafts)


def around(ring, chunk_of, adds=False, since=0):
    """Every rank's chunk all the way round."""
    size = len(ring)
    for place, rank in enumerate(ring):
        for step in range(size - 1):
            src, dst = ring[(place + step) % size], ring[(place + step + 1) % size]
            yield since + step, src, dst, (chunk_of(rank),), adds


def allreduce_on(rings):
    """AllReduce of one chunk for each rank and ring: the chunk of a rank starts behind it and ends there."""
    moves = []
    for number, ring in enumerate(rings):
        size = len(ring)

        def chunk(rank, number=number):
            return rank * len(rings) + number

        after = {rank: ring[(place + 1) % size] for place, rank in enumerate(ring)}
        before = {b: a for a, b in after.items()}
        moves += around(ring, lambda rank, chunk=chunk, before=before: chunk(before[rank]), adds=True)
        moves += around(ring, chunk, since=size - 1)
    return moves


def baseline(machine, kind, family, size=1e8):
    topology = load_machine(machine, "", 1).topology
    return next(each for each in baselines_of(topology, kind, 0, size) if each.family is family).variants


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLREDUCE, Kind.BROADCAST])
def test_rings_of_a_machine_are_found(kind):
    """NVLinks of a DGX-1 are 1 or 2 wide; a ring over all GPUs is limited by the narrow ones or uses the wide ones alone."""
    for variant in baseline("dgx1", kind, Family.RING):
        channels = find_channels(variant.schedule)
        assert not channels.trees
        assert len(channels.rings) == int(variant.name.split()[0])
        for ring in channels.rings:
            assert sorted(ring) == list(range(8))
            assert ring[0] == 0
            for pair in pairwise((*ring, 0)):
                assert pair in variant.schedule.topology.links_between


def test_rings_in_both_directions_share_no_link():
    schedule = schedule_of("ring:4", Kind.ALLREDUCE, 2, allreduce_on([(0, 1, 2, 3), (0, 3, 2, 1)]))
    assert find_channels(schedule) == NcclChannels(((0, 1, 2, 3), (0, 3, 2, 1)), (), 50.0)


def test_two_channels_on_one_ring_halve_its_rate():
    schedule = schedule_of("ring:4", Kind.ALLREDUCE, 2, allreduce_on([(0, 1, 2, 3), (0, 1, 2, 3)]))
    assert find_channels(schedule) == NcclChannels(((0, 1, 2, 3),), (), 50.0)


def test_a_ring_with_twice_the_data_is_two_channels():
    rings = [(0, 1, 2, 3), (0, 1, 2, 3), (0, 3, 2, 1)]
    channels = find_channels(schedule_of("ring:4", Kind.ALLREDUCE, 3, allreduce_on(rings)))
    assert channels == NcclChannels(tuple(rings), (), 25.0)
    assert channels.rounded == 0


def test_parts_that_are_nearly_multiples_are_rounded():
    """41 and 20 of 61 parts of a rank are 2 and 1 channels: 2/3 over 41/61 is 0.8 % less, and 1/3 over 20/61 is 1.7 % more."""
    moves = [m for n in range(61) for m in around((0, 1, 2) if n < 41 else (0, 2, 1), lambda rank, n=n: 61 * rank + n)]
    channels = find_channels(schedule_of("full:3", Kind.ALLGATHER, 61, moves))
    assert channels.rings == ((0, 1, 2), (0, 1, 2), (0, 2, 1))
    assert channels.rounded == pytest.approx(61 / 60 - 1)


def test_a_tree_is_found_with_its_parents():
    up = [(0, 3, 1, (0, 1), True), (0, 2, 0, (0, 1), True), (1, 1, 0, (0, 1), True)]
    moves = up + [(5 - step, dst, src, chunks, False) for step, src, dst, chunks, _ in up]
    moves = [(step, a, b, (c,), add) for step, a, b, _, add in moves for c in range(4)]
    channels = find_channels(schedule_of("full:4", Kind.ALLREDUCE, 1, moves))
    assert channels == NcclChannels((), ((-1, 0, 0, 1),), 50.0)
    assert write_strings(channels) == "export RCCL_TREES='(0(1(3))(2))'\n"
    with pytest.raises(LoweringError, match="trees are chains, and rank 0 has 2 children"):
        write_graph(channels, Medium.NVLINK)


def test_sums_up_a_chain_and_down_again_are_a_tree():
    for variant in baseline("full:4", Kind.ALLREDUCE, Family.TREE):
        channels = find_channels(variant.schedule)
        assert channels.trees
        assert not channels.rings
        assert read_channels(write_graph(channels, Medium.NVLINK), "g") == channels


def test_two_ranks_are_a_ring_if_they_are_even_and_a_tree_if_not():
    even = [(0, 0, 1, (1,), True), (0, 1, 0, (0,), True), (1, 0, 1, (0,), False), (1, 1, 0, (1,), False)]
    assert find_channels(schedule_of("full:2", Kind.ALLREDUCE, 1, even)).rings == ((0, 1),)
    at_one = [(0, 0, 1, (0, 1), True), (1, 1, 0, (0, 1), False)]
    assert find_channels(schedule_of("full:2", Kind.ALLREDUCE, 1, at_one)).trees == ((1, -1),)


def uneven():
    """All sums end at rank 0, and go on from there round the ring."""
    moves = []
    for chunk in range(3):
        moves += [
            (0, 1, 2, (chunk,), True),
            (1, 2, 0, (chunk,), True),
            (2, 0, 1, (chunk,), False),
            (3, 1, 2, (chunk,), False),
        ]
    return schedule_of("full:3", Kind.ALLREDUCE, 1, moves)


def of_both_kinds():
    ring = [(0, 1, 2, (0,), True), (1, 2, 0, (0,), True), (2, 0, 1, (0,), False), (3, 1, 2, (0,), False)]
    tree = [(0, 1, 0, (c,), True) for c in (1, 2)] + [(0, 2, 0, (c,), True) for c in (1, 2)]
    tree += [(5, 0, 1, (c,), False) for c in (1, 2)] + [(5, 0, 2, (c,), False) for c in (1, 2)]
    return schedule_of("full:3", Kind.ALLREDUCE, 1, ring + tree)


def of_many_parts():
    """Every one of the 120 rings over six ranks."""
    rings = [(0, *rest) for rest in permutations(range(1, 6))]
    moves = [m for n, ring in enumerate(rings) for m in around(ring, lambda rank, n=n: len(rings) * rank + n)]
    return schedule_of("full:6", Kind.ALLGATHER, len(rings), moves)


def on_two_nodes():
    return baseline_on_nodes("ndv2", Kind.ALLGATHER)


def baseline_on_nodes(machine, kind):
    topology = load_machine(machine, "", 2).topology
    return next(each for each in baselines_of(topology, kind, 0, 1e6) if each.variants).variants[0].schedule


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (on_two_nodes, "the machine has 2 nodes, and between nodes NCCL connects rings and trees itself"),
        (lambda: direct(Kind.ALLTOALL, 8000), "NCCL makes alltoall of single sends and receives"),
        (
            lambda: direct(Kind.ALLGATHER, 8000),
            r"chunk 0 \(of rank 0\) goes neither from rank to rank round a ring of all$",
        ),
        (lambda: gather_on_ring(8000), "chunk 0 .* goes neither"),
        (uneven, "here one ring has 3 of 3 chunks for rank 0"),
        (of_both_kinds, "some chunks go round rings and others up and down trees"),
        (of_many_parts, "equal parts for at most 32 channels, and what its 120 rings or trees carry"),
    ],
)
def test_what_is_no_channels_is_refused_with_the_reason(make, says):
    with pytest.raises(LoweringError, match=says):
        find_channels(make())


def test_a_direct_sum_is_a_star_of_every_rank():
    """Which RCCL takes up to three children, and NCCL not at all."""
    channels = find_channels(direct(Kind.ALLREDUCE, 8000))
    assert channels.trees[0] == (-1, *(0,) * 7)
    with pytest.raises(LoweringError, match="RCCL's trees have 3 children at most, rank 0 has 7"):
        write_strings(channels)


@st.composite
def some_channels(draw, chains):
    size = draw(st.integers(2, 12))
    number = draw(st.integers(1, 5))
    if draw(st.booleans()):
        rings = [(0, *draw(st.permutations(range(1, size)))) for _ in range(number)]
        return NcclChannels(tuple(rings), (), draw(st.floats(0.1, 900)))
    trees = []
    for _ in range(number):
        order = draw(st.permutations(range(size)))
        parents, children = [-1] * size, dict.fromkeys(order, 0)
        for place, rank in enumerate(order[1:], 1):
            open_ones = [each for each in order[:place] if children[each] < 3]
            parent = order[place - 1] if chains else draw(st.sampled_from(open_ones))
            parents[rank], children[parent] = parent, children[parent] + 1
        trees.append(tuple(parents))
    return NcclChannels((), tuple(trees), draw(st.floats(0.1, 900)))


@settings(max_examples=40)
@given(some_channels(chains=True))
def test_graph_files_read_back(channels):
    assert read_channels(write_graph(channels, Medium.NVLINK), "g") == channels


@settings(max_examples=40)
@given(some_channels(chains=False))
def test_strings_read_back(channels):
    again = read_strings(write_strings(channels), "s")
    assert (again.rings, again.trees) == (channels.rings, channels.trees)


@settings(max_examples=40)
@given(some_channels(chains=True))
def test_our_importer_sees_the_same_channels(channels):
    """It sums up the rates of the channels on every link."""
    box = read_graph_dump(ElementTree.fromstring(write_graph(channels, Medium.NVLINK)), "g")
    expected = {}
    for ring in channels.rings:
        for pair in dict.fromkeys(zip(ring, ring[1:] + ring[:1], strict=True)):
            expected[pair] = expected.get(pair, 0) + channels.gbps
    for parents in channels.trees:
        for rank, parent in enumerate(parents):
            for pair in [(rank, parent), (parent, rank)] * (parent >= 0):
                expected[pair] = expected.get(pair, 0) + channels.gbps
    found = {(int(link.src[4:], 16), int(link.dst[4:], 16)): link.gbps for link in box.gpu_links}
    assert found == pytest.approx(expected)
    assert box.inside is Medium.NVLINK


def test_nccls_model_reads_the_number_of_channels_and_their_rate(tmp_path: Path):
    made = lower_channels(
        schedule_of("ring:4", Kind.ALLREDUCE, 2, allreduce_on([(0, 1, 2, 3), (0, 3, 2, 1)])), ChannelForm.NCCL_GRAPH
    )
    (tmp_path / "graph.xml").write_text(made.text, encoding="utf-8")
    ring = read_graphs(tmp_path / "graph.xml").ring
    assert (ring.channels, ring.intra_gbps) == (2, 50.0)


GRAPH = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="1" speedintra="24" speedinter="24" typeintra="NVL" typeinter="PIX" samechannels="1">
    <channel>{gpus}</channel>
  </graph>
</graphs>"""


def test_a_dump_without_ranks_goes_by_its_devices():
    text = GRAPH.format(gpus='<net dev="0"/><gpu dev="0x1"/><gpu dev="0x0"/><gpu dev="0x2"/><net dev="0"/>')
    assert read_channels(text, "g") == NcclChannels(((0, 2, 1),), (), 24.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<graphs", "is not XML"),
        ("<system/>", "has no graph of rings"),
        ('<graphs version="1"><graph id="3" nchannels="0"/></graphs>', "has no graph of rings"),
        (GRAPH.format(gpus='<gpu dev="0" rank="0"/><gpu dev="0" rank="0"/>'), "channel 0: passes the GPUs 0, 0"),
        (GRAPH.format(gpus='<gpu dev="zz"/>'), "channel 0: passes the GPUs zz"),
        (GRAPH.format(gpus=""), "channel 0: passes the GPUs none"),
        (GRAPH.format(gpus='<gpu dev="0"/>').replace('nchannels="1"', 'nchannels="2"'), "nchannels is 2"),
        (
            GRAPH.format(gpus='<gpu dev="0"/>').replace('speedintra="24"', 'speedintra="fast"'),
            "speedintra: found 'fast'",
        ),
    ],
)
def test_broken_graph_files_are_refused(text, says):
    with pytest.raises(InputError, match=says):
        read_channels(text, "g")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "sets neither NCCL_RINGS nor RCCL_TREES"),
        ("export NCCL_ALGO=Ring", "sets neither"),
        ("NCCL_RINGS", "sets neither"),
        ("NCCL_RINGS='0 1 1'", "found '0 1 1'"),
        ("NCCL_RINGS='0 1|0 2'", "found '0 2'"),
        ("NCCL_RINGS='0 one'", "found '0 one'"),
        ("NCCL_RINGS='0 1|0 1 2'", "different numbers of GPUs"),
        ("NCCL_RINGS='" + "|".join(["0 1"] * 65) + "'", "has 65 channels"),
        ("RCCL_TREES='(0(1)'", "found"),
        ("RCCL_TREES='0(1)'", "found"),
        ("RCCL_TREES='(0)(1)'", "found"),
        ("RCCL_TREES='(0(0))'", "found"),
        ("RCCL_TREES='(0(2))'", "found"),
        ("RCCL_TREES='(0(1)))'", "found"),
        ("RCCL_TREES='(0 (1))'", "found"),
    ],
)
def test_broken_strings_are_refused(text, says):
    with pytest.raises(InputError, match=says):
        read_strings(text, "s")
