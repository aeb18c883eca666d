"""Numbers of engine ``demands``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Params:
    """Numbers of engine ``demands``.

    Attributes
    ----------
    power
        Power of a resource's load that is its price. Guess.
    most_owners
        Ranks at which a sum that several want may be completed, that are tried for each piece. Guess.
    trees
        Trees in the time of the bound, one after the other. Guess.
    pieces
        Pieces that follow each other on each tree. Guess.
    shortness
        Weights of a tree's length in time. Guess.
    most_messages
        Messages of a plan whose pieces could also be larger. Guess.
    most_looks
        Pieces times links for which trees are looked for, where single links would do too. Guess.
    floods
        Pieces of each class in floods, one after the other. Guess.
    most_flooded
        Messages of a flood times links that are looked at for each. Guess.
    least_step
        Part of the time that a plan with more pieces has to gain. Guess.
    enough_gap
        Part of the bound above it within which the search ends. Guess.
    near_gap
        The same for a large demand that is a collective, within which the engines of that are not asked. Guess.
    many_messages
        Messages of which only one order is tried. Guess.
    most_matched
        Nodes up to which Birkhoff's matchings are looked for. Guess.
    even
        Part of the fullest NIC's time by which a rotation of nodes may take longer; without an order less even demands lose 2 to 12 %. Guess.
    longest
        Longest messages between nodes, as parts of the whole. Guess.
    longest_copies
        The same, where nodes keep their order. Guess.
    lane_pieces
        Pieces that a lane carries one after the other where each takes one lane. Guess.
    enough_messages
        Messages between nodes beside which no finer plan is made. Guess.
    most_groups
        Ranks or nodes of which all unions are cuts. Guess.
    most_unions
        Classes of chunks times such unions. Guess.
    """

    power: float = 6.0
    most_owners: int = 8
    trees: tuple[int, ...] = (1, 2, 4, 8, 16)
    pieces: tuple[int, ...] = (1, 4, 16, 64, 256)
    shortness: tuple[float, ...] = (0.001, 0.1, 10.0)
    most_messages: int = 60_000
    most_looks: int = 500_000
    floods: tuple[int, ...] = (1, 2, 4, 6, 8)
    most_flooded: int = 2_000_000
    least_step: float = 1e-6
    enough_gap: float = 5e-4
    near_gap: float = 0.05
    many_messages: int = 50_000
    most_matched: int = 16
    even: float = 0.1
    longest: tuple[float, ...] = (1.0, 1 / 16, 1 / 64)
    longest_copies: tuple[float, ...] = (1.0, 1 / 8, 1 / 32)
    lane_pieces: int = 256
    enough_messages: int = 20_000
    most_groups: int = 10
    most_unions: int = 4_000_000


PARAMS = Params()
