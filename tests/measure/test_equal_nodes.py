"""Machines whose nodes are alike, of which a few stand for all."""

from taccl_py.measure.equal_nodes import EqualNodes
from taccl_py.measure.experiment import MeasuredFlow


def test_links_of_the_first_nodes_stand_for_all():
    """Four nodes of three ranks: what is inside a node is measured in the first, what is between nodes from the first to the second."""
    nodes = EqualNodes(4, 3)
    assert nodes.model(MeasuredFlow(10, 11)) == MeasuredFlow(1, 2)
    assert nodes.model(MeasuredFlow(10, 2)) == MeasuredFlow(1, 5)
    assert nodes.model(MeasuredFlow(1, 2)) == MeasuredFlow(1, 2)
