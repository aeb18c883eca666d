"""Numbers of engine ``greedy``, and of schedules that are replicated by a group."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Params:
    """Numbers of engine ``greedy``, and of schedules that are replicated by a group.

    Attributes
    ----------
    most_rail_chunks
        Chunks on all ranks up to which AllGather, ReduceScatter and AllReduce by rails are built. Guess.
    rail_gap_factor
        Schedules within this factor of the bound are not replaced by those by rails or owners. Guess.
    cuts
        Numbers of chunks of a rank that are tried. Guess.
    most_matched
        Messages of all attempts together. Guess.
    most_starts
        Attempts with one number of chunks, each with a seed of its own. Guess.
    most_exchange_messages
        Messages, relays not counted, up to which paths of an AllToAll without symmetry are chosen one by one. Guess.
    most_reordered
        Messages of one schedule, and of all attempts together, that are put into another order. Guess.
    most_resized_runners_up
        Schedules beside the best one for which unequal chunk sizes are looked for. Guess.
    most_resized_messages
        Messages of these schedules. Guess.
    resized_factor
        Times as slow as the best one that they may be. Guess.
    most_counted
        Bits that are looked at for each choice of the rarest chunk; beyond, chunks are chosen at random. Guess.
    least_process_messages
        Messages of all attempts together from which on other processes share them, which take a second or two to start.
        Guess.
    most_delegations
        Delegations that are written out, the fastest estimates first. Guess.
    most_tried
        Messages of one port that are looked at when the first one cannot start. Bench: scale.
    exchange_rounds
        Times that every chunk of an AllToAll chooses its path anew. Guess.
    matching_factor
        Matchings are maximum ones when at most so many times as many ranks are left as orbits are free. Guess.
    least_bound_ranks
        Ranks from which on the bound is computed in another process: below, it takes less time than starting one.
        Guess.
    owner_pieces
        Numbers of pieces of an AllReduce by owners. Bench: scale.
    most_owner_messages
        Messages between nodes up to which there are more pieces. Bench: scale.
    most_alpha_part
        Part of the time that alphas may take, with more pieces or groups. Guess.
    owner_chunks
        Chunks of an average piece. Guess.
    group_ends
        Ends of the groups of receivers that share a message inside a node, of the first and last piece: what is needed
        first comes in small messages. Guess.
    few_group_ends
        The same of the other pieces. Guess.
    most_groups
        Groups in nodes with a slow gate, for which others wait: a large message would delay an urgent one. Bench:
        scale.
    hand_out_ahead
        Part of the whole by which handing out is planned sooner than the last sum is expected. Guess.
    slow_gate_rate
        Gates with less than this part of the usual bandwidth are served first. Guess.
    regrown_chunks
        Numbers of chunks of a critical chain that are taken out and routed anew. Measured: four ND A100 v4 nodes
        without one NIC, AllGather of 16 MiB, 128 -> 100 us.
    closed_up_every
        Accepted changes after which later messages move up into gaps. Guess.
    regrow_work
        Messages that all tries may put in order, links included. Guess.
    link_work
        Messages that one link counts for in a try. Guess.
    most_tries
        Tries of one search. Guess.
    fewest_tries
        Tries with which a search is begun at all. Guess.
    vain_part
        Part of all tries after which, if they gained nothing one after the other, the search ends. Guess.
    starts
        Attempts, with other random choices, where all ranks are alike. Guess.
    starts_of_roles
        The same where ranks have several roles. Guess.
    replicated_cuts
        Numbers of chunks of a rank that are tried. Guess.
    one_node_effort
        Times as many tries of improvement on a machine of one node; between nodes that gains nothing. Measured: MI250X,
        AllGather of 16 MiB, 66.5 -> 60.3 us.
    most_replicated_places
        Places in trees of all roots up to which there are several chunks. Guess.
    most_left_out
        Generators that are left out where all of them keep a link or port in place. Guess.
    most_together
        Ranks of a node up to which chunks for them share a message. Guess.
    most_exchanged
        Pairs of ranks and links up to which an AllToAll chooses paths link by link. Guess.
    shard_halvings
        Halvings of the interval in which the time of a rail's gates is found: all digits of a float. Guess.
    least_beta_us_per_mb
        Beta that takes the place of none. Guess.
    """

    most_rail_chunks: int = 1_000_000
    rail_gap_factor: float = 1.1
    cuts: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    most_matched: int = 80_000
    most_starts: int = 24
    most_exchange_messages: int = 40_000
    most_reordered: int = 60_000
    most_resized_runners_up: int = 2
    most_resized_messages: int = 2_000
    resized_factor: float = 1.25
    most_counted: int = 200_000
    least_process_messages: int = 40_000
    most_delegations: int = 4
    most_tried: int = 12
    exchange_rounds: int = 4
    matching_factor: int = 4
    least_bound_ranks: int = 512
    owner_pieces: tuple[int, ...] = (8, 5, 4, 2)
    most_owner_messages: int = 1_200_000
    most_alpha_part: float = 0.1
    owner_chunks: int = 8
    group_ends: tuple[float, ...] = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
    few_group_ends: tuple[float, ...] = (0.5, 1.0)
    most_groups: int = 48
    hand_out_ahead: float = 0.1
    slow_gate_rate: float = 0.75
    regrown_chunks: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    closed_up_every: int = 8
    regrow_work: int = 1_000_000
    link_work: int = 8
    most_tries: int = 2000
    fewest_tries: int = 50
    vain_part: float = 0.25
    starts: int = 3
    starts_of_roles: int = 2
    replicated_cuts: tuple[int, ...] = (1, 2, 4, 8, 16)
    one_node_effort: int = 4
    most_replicated_places: int = 50_000
    most_left_out: int = 2
    most_together: int = 16
    most_exchanged: int = 20_000_000
    shard_halvings: int = 60
    least_beta_us_per_mb: float = 1e-12


PARAMS = Params()
