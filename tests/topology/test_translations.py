from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.topology.automorphism import image_of_links
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.machines import formula_topology
from taccl_py.topology.translations import Translations

FORMULAS = ("ring:5", "torus:2x3x4", "twisted:3x6", "twisted:2x2x4", "hypercube:4", "full:6", "fattree:4", "hpn:3")


def translations(formula: str) -> Translations:
    topology = formula_topology(formula)
    found = Translations.of(topology.symmetry, topology.num_ranks)
    assert found is not None
    return found


@pytest.mark.parametrize("formula", FORMULAS)
def test_an_element_is_known_by_what_it_does_to_one_rank(formula: str) -> None:
    group = translations(formula)
    size = formula_topology(formula).num_ranks
    # All elements, by walking: products of generators until nothing new comes.
    elements = {tuple(range(size))}
    while new := {tuple(g[r] for r in e) for g in group.generators for e in elements} - elements:
        elements |= new
    assert len(elements) == size
    image = {element[0]: element for element in elements}
    everyone = np.arange(size)
    for start, end in itertools.product(range(size), repeat=2):
        carried = group.carried(start, end, everyone).tolist()
        assert carried[start] == end
        assert tuple(carried) == image[carried[0]]


def test_a_twisted_torus_needs_more_coordinates_than_it_has_ranks() -> None:
    group = translations("twisted:3x6")
    # Going around the side of 3 moves 3 along the side of 6: 6 steps until nothing is changed.
    assert group.orders == (6, 6)
    assert group.rank_at.shape == (1, 36)


def test_ranks_that_no_translation_takes_to_each_other_have_roles() -> None:
    # Two lines of three, turned together: everyone goes to the same place of the next line.
    group = Translations.of([(3, 4, 5, 0, 1, 2)], 6)
    assert group is not None
    assert (group.size, group.roots, group.is_regular) == (2, (0, 1, 2), False)
    assert group.role.tolist() == [0, 1, 2, 0, 1, 2]
    assert group.carried(1, 4, np.arange(6)).tolist() == [3, 4, 5, 0, 1, 2]
    assert group.carried(5, 5, np.arange(6)).tolist() == [0, 1, 2, 3, 4, 5]


def test_what_keeps_one_rank_in_place_and_moves_another_is_not_free() -> None:
    assert Translations.of([(1, 0, 2, 3)], 4) is None
    assert Translations.of([(1, 0, 2, 3), (0, 1, 3, 2)], 4) is None, "four elements, of which two keep rank 0 in place"
    assert Translations.of([(1, 2, 0, 4, 3)], 5) is None, "cycles of three and of two"
    # The first one alone is free, and the second one does to the second pair what two of the first pair would be needed for.
    assert Translations.of([(1, 0, 3, 2), (1, 0, 2, 3)], 4) is None
    apart = Translations.of([(1, 0, 3, 2, 5, 4), (1, 0, 4, 5, 2, 3)], 6)
    assert apart is None, "on 0 and 1 both do the same, on the others not"
    assert Translations.of([(1, 0, 3, 2, 5, 4), (2, 3, 0, 1, 5, 4)], 6) is None, (
        "on 4 and 5 both do the same, on the others not"
    )


@pytest.mark.parametrize(("machine", "roles"), [("ndv2-x3", 8), ("dgx1", 2), ("mi250x-x2", 4)])
def test_nodes_whose_ranks_are_not_alike_are_turned_as_a_whole(machine: str, roles: int) -> None:
    topology = load_topology(machine)
    group = Translations.of(topology.symmetry, topology.num_ranks)
    assert group is not None
    assert len(group.roots) == roles
    everyone = np.arange(topology.num_ranks)
    for rank in range(topology.num_ranks):
        image = group.carried(group.roots[group.role[rank]], rank, everyone)
        assert image[group.roots[group.role[rank]]] == rank
        assert isinstance(image_of_links(topology, tuple(image.tolist())), tuple)


def test_what_does_not_commute_or_reach_everyone_is_no_group_of_translations() -> None:
    assert Translations.of([], 4) is None
    assert Translations.of([(1, 0, 2, 3)], 4) is None
    turn, mirror = (1, 2, 3, 0), (0, 3, 2, 1)
    kept = Translations.of([turn, mirror], 4)
    assert kept is not None
    assert kept.generators == (turn,), "the mirror image does not commute with the rotation"
    assert Translations.of([mirror, turn], 4) is None, "the mirror image came first, and leaves rank 0 in place"


@settings(max_examples=30)
@given(st.lists(st.integers(2, 5), min_size=1, max_size=3), st.data())
def test_shifts_of_a_torus_add_coordinates(sides: list[int], data: st.DataObject) -> None:
    group = translations(f"torus:{'x'.join(map(str, sides))}")
    places = list(itertools.product(*(range(side) for side in sides)))
    one, two, three = (data.draw(st.integers(0, len(places) - 1)) for _ in range(3))
    there = tuple((b - a + c) % n for a, b, c, n in zip(places[one], places[two], places[three], sides, strict=True))
    assert int(group.carried(one, two, three)) == places.index(there)
