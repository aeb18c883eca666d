"""Patterns: everyone ends with everything, and nobody gets anything twice."""

import pytest

from taccl_py.synthesis.templates.grids import grids, walks
from taccl_py.synthesis.templates.patterns import DIRECT, DOUBLING, PATTERNS, RING, axis, spread
from taccl_py.synthesis.templates.site import TemplateSite
from tests.instances import MB
from tests.synthesis.templates.machines import load


def got(messages, held):
    """Chunks of every rank after the moves, checked on the way."""
    now = {rank: set(chunks) for rank, chunks in held.items()}
    for time in sorted({message.start for message in messages}):
        arriving = [message for message in messages if message.start == time]
        for message in arriving:
            assert set(message.chunks) <= now[message.src], "sent before it was there"
        for message in arriving:
            assert now[message.dst].isdisjoint(message.chunks), "came twice"
            now[message.dst] |= set(message.chunks)
    return now


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_brings_everything_to_everyone_once(name, size):
    site = TemplateSite(load(f"full:{size}"), MB)
    held = {rank: (rank,) for rank in range(size)}
    messages = spread((axis(site, name, (tuple(range(size)),)),), held)
    assert all(chunks == set(range(size)) for chunks in got(messages, held).values())


@pytest.mark.parametrize(
    ("name", "size", "steps"), [(DIRECT, 6, 1), (DOUBLING, 8, 3), (DOUBLING, 6, 3), (RING, 8, 4), (RING, 7, 3)]
)
def test_a_pattern_takes_as_few_steps_as_it_promises(name, size, steps):
    site = TemplateSite(load(f"full:{size}"), MB)
    assert len(axis(site, name, (tuple(range(size)),)).steps) == steps


@pytest.mark.parametrize(("name", "possible"), [(DIRECT, False), (DOUBLING, False), (RING, True)])
def test_a_pattern_needs_its_links(name, possible):
    found = axis(TemplateSite(load("ring:6"), MB), name, (tuple(range(6)),))
    assert (found is not None) is possible


@pytest.mark.parametrize("name", ["dgx1", "ndv4-x2", "torus:4x4", "hypercube:3"])
def test_all_walks_over_a_machine_bring_everything_to_everyone_once(name):
    topology = load(name)
    held = {rank: (2 * rank, 2 * rank + 1) for rank in range(topology.num_ranks)}
    found = list(walks(TemplateSite(topology, MB)))
    assert found
    for walk in found:
        assert all(len(chunks) == 2 * topology.num_ranks for chunks in got(spread(walk.axes, held), held).values())


def test_the_axes_of_a_grid_run_inside_nodes_and_across_them():
    topology = load("ndv4-x2")
    by_name = {grid.name: grid for grid in grids(topology)}
    inside, across = by_name["8x2"].axes
    assert inside == topology.node_ranks
    assert across == tuple((rank, rank + 8) for rank in range(8))
    assert by_name["2x8 outer first"].axes == (across, inside)


def test_nodes_of_unequal_size_are_one_axis():
    topology = load("ndv4-x2").subset([0, 1, 2, 8])
    for grid in grids(topology):
        assert sorted(rank for group in grid.axes[0] for rank in group) == [0, 1, 2, 3]
