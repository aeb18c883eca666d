"""Spreading of chunks, one message after the other."""

from types import SimpleNamespace

from taccl_py.synthesis.matching.growth import _links_to


def test_the_root_is_no_link_away_from_itself_though_links_lead_back_to_it():
    """Ring 0 -> 1 -> 2 -> 0, and 0 -> 2 on top."""
    fabric = SimpleNamespace(topology=SimpleNamespace(num_ranks=3), links_from=[[0, 3], [1], [2]], dst=[1, 2, 0, 2])
    assert _links_to(fabric, 0) == [0, 1, 1]
    assert _links_to(fabric, 1) == [2, 0, 1]
