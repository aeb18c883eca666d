"""Symmetry of a node that was read and not written by people: regular renumberings of the ranks, kept where they are right."""

from __future__ import annotations

from taccl_py.topology.automorphism import LinkImages, regular_renamings
from taccl_py.topology.template import NodeTemplate, instantiate

# Nodes with more ranks than this are declared without symmetry.
_MOST_RANKS = 256


def node_symmetry(node: NodeTemplate) -> tuple[tuple[int, ...], ...]:
    """Renumberings (turns by a divisor, and exchanges of one bit of the number) that leave links, switches and NICs as they are.

    Not all that a machine has: the regular ones, which are those that matter for machines made of equal parts.

    Parameters
    ----------
    node
        The node; its own ``symmetry`` is not looked at.
    """
    size = node.num_ranks
    if size < 2 or size > _MOST_RANKS:
        return ()
    found: list[tuple[int, ...]] = []
    machine = LinkImages(instantiate(node, 2 if node.nics else 1))
    for image in regular_renamings(size):
        everywhere = (*image, *(size + rank for rank in image)) if node.nics else image
        if not isinstance(machine.of(everywhere), str) and not _made_of(image, found):
            found.append(image)
    return tuple(found)


def _made_of(image: tuple[int, ...], found: list[tuple[int, ...]]) -> bool:
    """True if the renumbering is a power of one that was found."""
    for other in found:
        power = other
        for _ in range(len(image)):
            if power == image:
                return True
            power = tuple(other[rank] for rank in power)
    return False
