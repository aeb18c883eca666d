"""Numbers of engine ``hierarchy``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Params:
    """Numbers of engine ``hierarchy``.

    Attributes
    ----------
    most_deliveries
        Deliveries of chunks after which no more strategies are written out. Guess.
    most_made
        Strategies of which plans are made, many of which may come to the same, or to nothing. Guess.
    most_written
        Different plans that are written out, the fastest estimates first. Guess.
    estimate_factor
        Strategies whose estimate is so many times the best schedule's time are not written out. Guess.
    most_in_vain
        Schedules in a row that may be no better than the best one before only those with better estimates are written out. Measured: 429
        instances on 10 clusters of 2 to 8 nodes, a fifth of the time for writing, and nothing lost; with 6 two of 89 on three other
        clusters lost 0.9 and 1.8 %.
    patient_seconds
        Seconds of work for writing before that is so. Measured: as `most_in_vain`; with none, two lose 0.6 and 1.3 %.
    estimate_factor_in_vain
        Times of the best schedule that an estimate may be then. Measured: as `most_in_vain`.
    many_messages
        Messages of a rooted schedule from which on coarser ones are kept beside it, and its chunks stay equal. Guess.
    most_coarser
        Schedules of fewer messages that are then kept. Guess.
    estimation_part
        Part of the time in which strategies are estimated; the rest is for writing them out. Guess.
    least_estimation_seconds
        Seconds in which strategies are estimated in any case: some dozens of them on 64 ranks. Guess.
    cuts
        Lengths of the pieces into which data is cut: equal ones, and with a short first or last piece, or both. Measured:
        AllReduce of 64 MiB, two ND A100 v4 nodes, 405.9 -> 404.1 us by seven pieces; the other cuts are guesses.
    chain_cuts
        Further cuts where each node passes data on to the next, and the last one waits for all that come before. Guess.
    lane_counts
        Numbers of lanes that may carry one rank's data. Guess.
    most_copies
        Copies of chunks on all ranks up to which data is cut finer. Guess.
    most_grids
        Grids of nodes that are written out, and as many in pieces. Measured: 512 H800, AllReduce of 1 MiB, 28.6 -> 28.1
        us.
    most_delegate_ranks
        Ranks of a node up to which delegates are tried; beyond, messages are many, and copies are more steps than
        threadblocks can have. Measured: two GB200 racks of 72 have no room for them.
    bundle_longest
        Longest times of messages of several chunks, in times of one of a single chunk on the slowest link. Measured:
        two MI250X nodes, AllGather of 1 MiB, 13.1 -> 11.8 us.
    bundle_patience
        Times, in those of a message here, up to which a chunk is left to a faster link. Measured: as `bundle_longest`.
    bundle_rounds
        For each round of attempts the rules that take part and the attempts of each; all rules take part in the first.
        Guess.
    bundle_deliveries
        Deliveries of chunks inside a node in all attempts together. Guess.
    most_bundle_chunks
        Chunks of a node up to which bundles are tried. Guess.
    most_grid_turns
        Messages of a lane in one leg of a grid. Guess.
    most_grid_scatters
        Scatters of a grid. Guess.
    least_owner_difference
        Part by which the largest share of a node is above an equal one, at least, where nodes own unequal shares. Guess.
    least_owner_share
        Shares that are less than such a part of an equal one are not worth a message, and are left out. Guess.
    owner_pieces
        Numbers of pieces of each lane where nodes own unequal shares. Guess.
    owner_chunks
        Chunks of each part of a piece, where there can be as many. Guess.
    most_owner_messages
        Messages of such a plan. Guess.
    most_owner_plans
        Such plans that are written out, the fastest estimates first. Measured: two H100 and two A100 nodes, AllReduce of 1 GiB,
        6.40 -> 6.33 ms.
    halving_pieces
        Numbers of pieces of an AllReduce by halving and doubling. Guess.
    halving_last_messages
        Numbers of messages of the last step. Measured: eight ND H100 v5 nodes, AllReduce of 4 MiB, 44.4 -> 40.7 us.
    halving_messages
        Numbers of messages of the step before it. Guess.
    halving_shrink
        Size of a message of a step in parts of the one before it, until a linear program finds sizes. Guess.
    halving_rounds
        Times that sizes are found for an order, and then an order for them. Guess.
    halving_guess_factor
        Shapes whose guessed sizes take so many times as long as the best one's are left out. Measured: AllReduce of 1 MiB to 1 GiB on ndv4, ndv5,
        hpn:4, mi300x and dgx2 of 2 to 8 nodes: the best one's took 1.028 times as long at most.
    most_halvings_sized
        Shapes for which sizes are found, the best guesses first. Measured: as before, the best one was the 26th at most.
    most_halvings_cut
        Shapes that are cut into chunks. Guess.
    most_halving_chunks
        Chunks of a shard. Guess.
    least_halving_gain
        Part of the time that more chunks have to save. Guess.
    most_relay_ranks
        Ranks up to which relays are chosen by a solver. Measured: two MI250X nodes, AllGather of 1 KiB, 6.6 -> 5.04 us.
    most_relays
        Relays among which it chooses. Guess.
    relay_seconds
        Seconds for each choice, at most. Guess.
    most_exchange_ranks
        Ranks of a node up to which sums are exchanged through hubs. Measured: two MI250X nodes, AllReduce of 1 KiB, 7.6
        -> 5.13 us.
    most_exchange_groups
        Hubs of a node that are tried. Guess.
    exchange_work
        Deterministic time for one number of hubs. Guess.
    exchange_seconds
        Seconds for one number of hubs, at most. Guess.
    most_taper_nodes
        Nodes up to which they are served one after the other; on more there are too many messages. Guess.
    taper_messages
        Numbers of messages to the last node. Measured: four ND H100 v5 nodes, AllGather of 16 MiB, 48.3 -> 46.4 us.
    taper_shrinks
        Sizes of a message to the last node in parts of the one before it. Guess.
    most_taper_chunks
        Chunks of a shard. Guess.
    triple_halvings
        Halvings of the interval in which the arrival of the second messages is found, which leave 1e-9 of it. Guess.
    """

    most_deliveries: int = 300_000
    most_made: int = 96
    most_written: int = 24
    estimate_factor: float = 1.3
    most_in_vain: int = 8
    patient_seconds: float = 2.0
    estimate_factor_in_vain: float = 1.02
    many_messages: int = 4_000
    most_coarser: int = 2
    estimation_part: float = 0.5
    least_estimation_seconds: float = 0.3
    cuts: tuple[tuple[int, ...], ...] = ( (1,), (1, 1), (2, 1), (3, 1), (5, 1), (1, 1, 1), (1, 2, 1), (4, 2, 1), (1, 1, 1, 1), (1, 2, 2, 1), (4, 3, 2, 1), (1, 2, 3, 2, 1), (1, 3, 4, 3, 1), (6, 4, 3, 2, 1), (1,) * 6, (1, 2, 3, 3, 2, 1), (1, 2, 2, 2, 2, 2, 1), (1,) * 8, (1, 2, 2, 2, 2, 2, 2, 1), (1,) * 12, (1,) * 16, )  # fmt: skip
    chain_cuts: tuple[tuple[int, ...], ...] = tuple((1,) * count for count in (32, 64, 128))
    lane_counts: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    most_copies: int = 4_000_000
    most_grids: int = 4
    most_delegate_ranks: int = 16
    bundle_longest: tuple[float, ...] = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
    bundle_patience: tuple[float, ...] = (0.0, 1.0, 1.25, 1.5, 1.75, 2.0)
    bundle_rounds: tuple[tuple[int, ...], ...] = ((42, 1), (10, 4), (4, 25))
    bundle_deliveries: int = 300_000
    most_bundle_chunks: int = 256
    most_grid_turns: int = 4
    most_grid_scatters: int = 3
    least_owner_difference: float = 0.05
    least_owner_share: float = 0.02
    owner_pieces: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
    owner_chunks: int = 4
    most_owner_messages: int = 20_000
    most_owner_plans: int = 2
    halving_pieces: tuple[int, ...] = (1, 2, 3, 4)
    halving_last_messages: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8)
    halving_messages: tuple[int, ...] = (1, 2, 3)
    halving_shrink: float = 0.6
    halving_rounds: int = 3
    halving_guess_factor: float = 1.08
    most_halvings_sized: int = 32
    most_halvings_cut: int = 8
    most_halving_chunks: int = 32
    least_halving_gain: float = 0.003
    most_relay_ranks: int = 64
    most_relays: int = 8000
    relay_seconds: float = 5.0
    most_exchange_ranks: int = 16
    most_exchange_groups: int = 4
    exchange_work: float = 8.0
    exchange_seconds: float = 20.0
    most_taper_nodes: int = 16
    taper_messages: range = range(1, 7)
    taper_shrinks: tuple[float, ...] = (0.45, 0.55, 0.65, 0.75, 0.85)
    most_taper_chunks: int = 32
    triple_halvings: int = 30


PARAMS = Params()
