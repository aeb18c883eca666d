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
    slowest_factor
        Links that are so many times slower than the fastest one or port, and than one on which the largest class takes as long as everything, do
        not make pieces smaller: what they carry is little. Guess.
    shortness
        Weights of a tree's length in time. Guess.
    most_listed
        Pieces times links up to which list scheduling weighs every piece on every link. Guess.
    listed_pieces
        Pieces of the largest class in list scheduling, one after the other. Guess.
    listed_horizon
        Times the bound that its grid of times resolves. Guess.
    listings
        Restarts of list scheduling, and orders of the routes of a linear program. Guess.
    listing_jitter
        Relative random change of its priorities. Guess.
    listings_timed
        The fastest of these plans, which are timed. Guess.
    steps_slack
        Length of plans in steps, at most, as times that of list scheduling. Guess.
    more_steps
        Steps beyond the fewest that are tried. Guess.
    steps_work
        Deterministic time of CP-SAT on the model of steps. Guess.
    share
        Part of the budget that a planner may use where all are asked. Guess.
    staging
        Part of the budget that is left for each of these. Measured: bench section demands, rows of some kilobytes on random machines.
    most_packed
        Pairs of a rank that holds a term and one that wants it, times links, up to which trees are packed. Guess.
    most_rounds
        Rounds in which a packing gets more trees. Guess.
    packing_gap
        Part of the load above its bound at which a packing ends. Guess.
    hop_price
        What a hop costs in a packing beside the dearest link. Guess.
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
    settling
        Part of the budget that may be left where the best schedule is near the bound. Guess.
    enough_gap
        Part of the bound above it within which the search ends. Guess.
    large_near_gap
        The same for a large demand that is a collective, within which the engines of that are not asked. Guess.
    few_exchanges
        Pairs of ranks up to which what one rank has for one other is also planned as copies are. Measured: bench section demands, AllToAllv
        of 256 MB with zipf:0.5 on two nodes 2964.0 -> 2948.8 us; on eight nodes it takes as long again for 0.6 %.
    planned_pairs
        Pairs of ranks from which an AllToAll goes to the planners first. Measured: bench section demands, 64 H100, 256 MB, 18 -> 5 s of the clock,
        4552.8 -> 4562.5 us.
    many_messages
        Messages of which only one order is tried. Guess.
    most_in_runners_up
        Messages of a plan that is slower on links and ports up to which it is timed to be a runner-up; of many more no program is made. Guess.
    most_justified
        Messages of a plan up to which they are moved to gaps that earlier ones leave. Measured: bench section demands, AllToAllv on random
        machine 6, whose plans have 3009 messages, effort quick, 2645 -> 2184 us.
    more_attempts
        Random changes of the best plan, as times those of a plan of trees of a collective. Guess.
    reordering
        Part of what is left of the budget for them. Measured: bench section demands, rows of some kilobytes: with 0.5, after engines of
        collectives, copies and sums on one machine of 8 were 8.1 % slower than by trees alone.
    reordered_gap
        Part of the time of the best plan above it up to which the best plans of other planners get them too. Guess.
    packing_pieces
        Pieces in the time of the bound that trees of a packing are cut into, one after the other. Guess.
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
    near_gap
        Part of the bound above it within which neither a collective's schedule nor CP-SAT is tried. Guess.
    evened_gap
        The same where the lanes of nodes have been evened out, for trees too. Measured: AllToAllv of 256 MB with zipf:0.5 and zipf:1 on two nodes of
        ndv4, ndv5, mi300x and hpn: trees are 3 to 11 % slower and take 90 % of the time where the lanes are within 6 % of the bound,
        10 % faster where they are 17 % above it.
    most_waste
        Bytes that a covering collective moves, as times those that are wanted, up to which it is tried. Guess.
    most_covered
        Ranks up to which it is tried. Guess.
    covering
        Part of the budget that is left for it. Guess.
    most_literals
        Pieces times links up to which messages are one model of CP-SAT. Guess.
    exact_pieces
        Pieces of each class in that model, one after the other. Guess.
    whole_work
        Deterministic time of CP-SAT on the whole model. Guess.
    part_work
        The same with a few pieces free. Guess.
    time_units
        Units of time up to the time of the best schedule. Guess.
    more_messages
        Messages that each link may have beyond those of the best schedule. Guess.
    fewest_free, most_free
        Pieces that are free at a time. Guess.
    patience
        Attempts without gain after which one piece more is free. Guess.
    most_failures
        Attempts without gain after which the search ends. Guess.
    """

    power: float = 6.0
    most_owners: int = 8
    trees: tuple[int, ...] = (1, 2, 4, 8, 16)
    pieces: tuple[int, ...] = (1, 4, 16, 64, 256)
    slowest_factor: float = 32.0
    shortness: tuple[float, ...] = (0.001, 0.1, 10.0)
    most_listed: int = 20_000
    listed_pieces: tuple[int, ...] = (1, 2, 4, 8, 16)
    listed_horizon: float = 200.0
    listings: int = 10
    listing_jitter: float = 0.3
    listings_timed: int = 3
    steps_slack: int = 4
    more_steps: int = 2
    steps_work: float = 0.3
    share: float = 0.25
    staging: float = 0.4
    most_packed: int = 100_000
    most_rounds: int = 100
    packing_gap: float = 1e-4
    hop_price: float = 1e-6
    most_messages: int = 60_000
    most_looks: int = 500_000
    floods: tuple[int, ...] = (1, 2, 4, 6, 8)
    most_flooded: int = 2_000_000
    least_step: float = 1e-6
    settling: float = 0.5
    enough_gap: float = 5e-4
    large_near_gap: float = 0.05
    few_exchanges: int = 1000
    planned_pairs: int = 4000
    many_messages: int = 50_000
    most_in_runners_up: int = 5_000
    most_justified: int = 6_000
    more_attempts: float = 100.0
    reordering: float = 0.15
    reordered_gap: float = 0.05
    packing_pieces: tuple[int, ...] = (1, 8, 16, 32, 64, 128)
    most_matched: int = 16
    even: float = 0.1
    longest: tuple[float, ...] = (1.0, 1 / 16, 1 / 64)
    longest_copies: tuple[float, ...] = (1.0, 1 / 8, 1 / 32)
    lane_pieces: int = 256
    enough_messages: int = 20_000
    most_groups: int = 10
    most_unions: int = 4_000_000
    near_gap: float = 0.005
    evened_gap: float = 0.1
    most_waste: float = 1.5
    most_covered: int = 16
    covering: float = 0.5
    most_literals: int = 4000
    exact_pieces: tuple[int, ...] = (1, 2, 4)
    whole_work: float = 0.3
    part_work: float = 0.03
    time_units: int = 20_000
    more_messages: int = 1
    fewest_free: int = 4
    most_free: int = 12
    patience: int = 4
    most_failures: int = 40


PARAMS = Params()
