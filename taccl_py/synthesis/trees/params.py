"""Numbers of engine ``trees``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Params:
    """Numbers of engine ``trees``.

    Attributes
    ----------
    tree_counts
        Numbers of trees of each root. Guess.
    piece_counts
        Numbers of pieces of each tree's data. Bench: large.
    coarse_piece_counts
        Those among them by which rules of dispatch are chosen where about the best number is known. Guess.
    least_promised_part
        Part of the promised number of pieces from which on numbers are tried there. Guess.
    most_pieces
        Pieces of a root's data where there are many roots. Guess.
    most_pieces_of_one_root
        Pieces of the only root's data. Bench: large.
    most_messages
        Messages of the whole machine, beyond which finer pieces cost more time than they save. Guess.
    most_ruled_messages
        Messages of the roots' trees up to which all rules are tried. Guess.
    most_tree_messages
        Messages of the roots' trees up to which the best rule is tried. Guess.
    dispatch_rules
        Patience and least message, in alphas, of the rules of dispatch that are tried; others have neither. Guess.
    fewest_rules
        Rules that are kept for finer pieces. Guess.
    step_part
        Part of a rank's steps in the XML that its messages may take; threadblocks and steps that only wait take the
        rest. Guess.
    most_shaken
        Plans that are ordered anew at random. Guess.
    most_restarts
        Random orders of one plan. Guess.
    restart_messages
        Messages that all random orders may schedule together. Guess.
    most_justified_messages
        Messages of plans by all rules that are justified together, the fastest plans first. Measured: AllGather of 64 MiB on irregular
        machines of 9 and 10 ranks, 22.2 -> 8.4 and 10.1 -> 6.0 % above the bound, with what follows here.
    justified_factor
        Times as slow as the fastest plan so far that one may be to be justified. Measured: of 2,400 plans of AllGather and AllReduce on
        dgx1, torus:4x4 and 2 x ndv4 none became faster by more than 26 %; MI250X, AllGather of 256 KiB, 9.76 -> 8.67 us in the same time.
    most_bettered
        Turns in which the best plan gets a better order and better sizes. Guess.
    bettering_part
        Part of the time that is left for that. Guess.
    finer_gain
        Part of a plan's time that finer pieces have to save for still finer ones to be tried first. Measured: engine trees,
        mi250x of 2 nodes, Broadcast of 1 GiB, 15.1 -> 5.9 ms.
    least_gain
        Part of the time that finer pieces have to save. Guess.
    few_places
        Places in trees up to which trees are made for all numbers before the best numbers are chosen. Guess.
    very_few_places
        Places in direct trees below which numbers of trees with more load are tried too. Guess.
    most_grown_places
        Places in direct trees up to which they are grown, which takes as many maximum flows. Guess.
    most_regrown_places
        Places in trees that are grown again with other seeds. Guess.
    most_seeds
        Seeds with which they are: a few ranks have few different trees. Guess.
    promise_factor
        Direct trees that promise to take so many times as long as the best ones are not tried. Guess.
    most_tree_counts
        Numbers of trees that are tried, those of the least load first. Guess.
    small_tree_counts
        The smallest numbers of trees, which are tried in any case. Guess.
    tree_price
        Part of the load that one more tree for each root has to save to be tried before, where all are tried. Guess.
    rounding_part
        Part of the time in which trees are made of all numbers before the first ones are put in order, where they have few places. Measured:
        Broadcast of 1 GiB on two MI250X nodes, 8870 -> 4696 us by `auto`.
    most_failures
        Numbers of pieces in a row that may be no better. Guess.
    most_runner_up_messages
        Messages of the roots' trees up to which coarser plans are kept, if these are more than half of the best plan's. Guess.
    unsized_factor
        Times as slow as the best plan that one may be whose sizes are still to be chosen. Bench: forestcoll.
    enough_factor
        Times the bound at which the search ends. Guess.
    long_alphas
        Longest alphas that the bound must amount to for sizes to taper. Guess.
    usual_shard_pieces
        Pieces of a shard by whose size detours are priced. Guess.
    most_resized
        Plans for which better sizes are looked for. Guess.
    most_turned
        Plans of an AllGather that are tried for each half of an AllReduce. Guess.
    turned_factor
        Times their bounds that an AllReduce must take for such halves to be tried. Guess.
    hub_gain
        Times as much of the fullest resource that ReduceScatter and AllGather must need for a hub to be tried. Guess.
    most_hub_ranks
        Ranks up to which rounded trees of a hub are tried: those of more are too deep, and take too long. Guess.
    most_direct_hub_ranks
        Ranks up to which direct trees of a hub are tried. Guess.
    hub_only_load
        Part of the load of ReduceScatter and AllGather below which a hub gets all of the time and not half. Measured:
        mesh of 8 x 8, AllReduce of 1 GiB, 21.2 -> 13.8 ms.
    hub_only_time
        Part of the least time of ReduceScatter and AllGather below which a plan through a hub ends the search. Guess.
    most_sized_messages
        Messages of the roots' trees up to which a linear program finds sizes. Guess.
    evened_piece_chunks
        Chunks of each piece, at least, where there are more messages and pieces are no chunks that divide the size.
        Guess.
    shared_losses
        Throughput that shared trees may give up, and the least amount that one carries. Bench: forestcoll.
    shared_busy_parts
        Parts of the time that full links and ports should be busy in at the beginning and at the end. Bench: forestcoll.
    shared_prices
        Prices of the end, the beginning having 1, and of a full link on the longest path. Bench: forestcoll.
    shared_full
        Part of the largest load from which on links and ports count as full in shared trees. Guess.
    hub_piece_chunks
        Chunks of an average piece, at least, where pieces of a hub's trees differ. Guess.
    least_gain_of_roots
        Times as much of the fullest resource that ReduceScatter and AllGather must need for roots with parts of any
        size to be tried. Guess.
    roots_only_gain
        Times as much from which on most of the time goes to such roots. Guess.
    least_root_part
        Parts of less than this share of the largest one are left to the others. Guess.
    rival_part
        Part of the time for several roots where a hub's trees may be as light. Measured: engine trees, AllReduce, with and without them: mesh:3x3,
        64 MiB, 1041 -> 989 us, mesh:3x5, 16 MiB, 307 -> 280, dgx1 without link 0-3, 1 GiB, 13.98 -> 13.66 ms; mi300x, link 0-1 at half, 1 GiB, 5783 ->
        5947 us, but in a race, which takes longer, 5862 -> 5783.
    short_part
        Part of the time for packings through roots of trees with few hops. Guess.
    root_promise_factor
        Times the time that the most promising packing through roots promises that one may promise to be tried. Guess.
    root_parts
        Numbers of parts of one size that are tried beside one part and those of the packing. Measured: engine trees, 64 MiB, of 12 irregular
        machines Broadcast was faster with them on four, by up to 3.7 %, and slower on one, by 0.4; of 24 AllReduce was faster on 13, by up to 15 %
        where a packing has five parts or more, and slower on five, by up to 1.6.
    most_root_packings
        Such packings that are tried. Guess.
    most_root_places
        Links of all trees together up to which trees with shorter paths are looked for. Guess.
    most_shortened
        Turns in which they are, for the number of rounds that was best on the last ones. Guess.
    root_work
        Most deterministic time of CP-SAT for all of them. Measured: machines 34 and 88 of those 24, where three parts need 0.9.
    root_work_part
        Part of the search's time that this is at most. Guess.
    root_turn_part
        Part of what is left of it for one solve. Guess.
    root_ticks
        Ticks of the time that is known before. Guess.
    root_piece_counts
        Numbers of pieces of all data that are tried there. Measured: irregular machine of 8 ranks, AllReduce of 64 MiB,
        8.06 -> 6.74 ms.
    least_root_pieces
        Part of the promised number of pieces from which on numbers are tried there. Measured: irregular machine of 22 ranks, AllReduce of 64 MiB,
        8918 us with 0.4, 8663 with 0.25.
    root_piece_chunks
        Chunks of an average piece there, at least. Guess.
    most_root_messages
        Messages of the roots' trees beyond which there are no finer pieces. Guess.
    round_slacks
        Parts of the time of the fullest link or port by which rounds are longer; the next one where there is no round with the one before. Guess.
    round_ticks
        Ticks of a round. Guess.
    round_work
        Deterministic time of CP-SAT for one round. Measured: machines of 7 to 16 ranks, up to 96 transfers, within 8 % of the
        shortest first round.
    most_round_transfers
        Transfers of a round up to which one is looked for. Guess.
    round_counts
        Numbers of rounds. Guess.
    round_piece_chunks
        Chunks of an average piece by which a round is timed. Guess.
    stretch
        Times the longest message of one piece that a message may take for which nobody waits. Guess.
    dispatch_full
        Part of the most work from which on links and ports count as full in dispatch. Guess.
    disjoint_noise
        Relative random change of link times, so that trees of other seeds differ. Guess.
    path_noise
        Random part of a hop by which equally long paths differ, so that no two corners of the program are best. Guess.
    settling_gap
        Relative gap of the packing of the rest while trees are settled one by one. Guess.
    load_price
        Price of the loads of trees while they are settled, beside that of the fullest resource. Measured: Broadcast
        over sparse nodes, up to 1.4 times as fast.
    steadiness
        Part of the prices that gave the best bound in those that trees are found for. Measured: packings for Broadcast on two MI250X nodes,
        four NDv2, two ND A100 v4 and on a torus of 16; 488 trees priced become 283 with 0.3, 273 with 0.5, 277 with 0.7 (4.1 s -> 1.4 s), the
        others' a third less.
    hop_price
        Price of a hop as a part of the average link's, so that trees of equal price are shallow. Guess.
    rail_chunks
        Chunks of a shard. Bench: forestcoll.
    rail_tapers
        Largest parts of the rest that one message between nodes takes. Bench: forestcoll.
    rail_caps
        Largest parts of a shard that one takes. Bench: forestcoll.
    rail_least_chunks
        Fewest chunks of one. Bench: forestcoll.
    rail_parts
        Most parts in which a message is handed out. Bench: forestcoll.
    rail_grains
        Fewest chunks of such a part. Bench: forestcoll.
    rail_calms
        Backlogs at which a link costs e times as much, as parts of the time of the message that is handed out. Bench:
        forestcoll.
    rail_calm_chunks
        Chunks whose time is added to these backlogs. Guess.
    rail_hop_price
        Price of a hop from the root in parts of the average link's. Guess.
    joined_alphas
        Alphas that a message inside a node may take so that neighbours share it. Guess.
    most_rail_messages
        Messages of the roots' trees beyond which no plans by rails are made. Guess.
    most_rail_settings
        Settings that are tried. Guess.
    first_rail_tapers
        Positions in `rail_tapers` of the settings that are tried first, each with all numbers of chunks. Guess.
    resized_piece_chunks
        Chunks for each piece, at least, where sizes are found. Guess.
    most_resized_chunks
        Chunks of a rank, at most. Guess.
    chunk_step
        Times as many chunks from one try to the next, at least. Guess.
    least_resized_gain
        Part of the time that sizes, or finer chunks, have to save. Guess.
    penalty_steepness
        Exponents of a resource's penalty in its relative load, from coarse to fine. Guess.
    most_passes
        Passes over all ranks and trees, with each steepness. Guess.
    usual_tree_pieces
        Pieces of a tree's data by whose size depth is priced. Guess.
    rounding_full
        Part of the largest load from which on a resource counts as full in rounding. Guess.
    rounding_factor
        Times the load of the packing at which rounded trees are good enough. Guess.
    shallow_factor
        Times the load of the packing that shallow trees may have. Bench: forestcoll.
    fixed_crossing_price
        Part of their beta that links between nodes count for where they are fixed, so that the others decide. Guess.
    detours
        Detours of a hop as parts of the longest of the shortest paths; smaller ones are tried first. Bench: forestcoll.
    most_layered
        Layered machines that are packed. Guess.
    varied_detours
        The same for trees to choose from. Bench: forestcoll.
    taper_tree_counts
        Numbers of trees of each root in tapered plans. Bench: forestcoll.
    most_taper_tree_sets
        Tree sets that are searched, those of the least load first. Guess.
    taper_piece_counts
        Numbers of pieces of each tree's data. Bench: forestcoll.
    shared_pieces
        Numbers of pieces of a root's data where trees carry unequal parts. Bench: forestcoll.
    taper_falls
        Sizes of a piece in parts of the one before it. Bench: forestcoll.
    tapers
        Largest parts of the rest that one message takes. Bench: forestcoll.
    first_taper_setting
        Numbers of pieces, fall and taper that are tried first, as positions in their tables. Guess.
    most_taper_places
        Places in trees up to which there are several trees of each root. Guess.
    most_taper_messages
        Messages of the roots' trees beyond which no tapered plans are made. Guess.
    taper_piece_chunks
        Chunks of an average piece, at least. Guess.
    taper_load_digits
        Decimal places of loads in which tree sets must differ for the lighter one to be searched first. Guess.
    shared_chunks
        Chunks of a shard where trees carry unequal parts. Bench: forestcoll.
    """

    tree_counts: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 16, 24)
    piece_counts: tuple[int, ...] = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
    coarse_piece_counts: tuple[int, ...] = (2, 8)
    least_promised_part: float = 0.4
    most_pieces: int = 64
    most_pieces_of_one_root: int = 1024
    most_messages: int = 200_000
    most_ruled_messages: int = 12_000
    most_tree_messages: int = 100_000
    dispatch_rules: tuple[tuple[float, float], ...] = (
        (0.0, 0.0),
        (0.15, 0.0),
        (0.25, 0.0),
        (0.35, 8.0),
        (0.5, 16.0),
        (1.0, 0.0),
    )
    fewest_rules: int = 3
    step_part: float = 0.95
    most_shaken: int = 3
    most_restarts: int = 24
    restart_messages: int = 4_000
    most_justified_messages: int = 6_000
    justified_factor: float = 1.3
    most_bettered: int = 6
    bettering_part: float = 0.4
    finer_gain: float = 0.05
    least_gain: float = 0.001
    few_places: int = 200
    very_few_places: int = 64
    most_grown_places: int = 6_000
    most_regrown_places: int = 10_000
    most_seeds: int = 200
    promise_factor: float = 1.1
    most_tree_counts: int = 4
    small_tree_counts: int = 3
    tree_price: float = 0.005
    rounding_part: float = 0.25
    most_failures: int = 2
    most_runner_up_messages: int = 6_000
    unsized_factor: float = 1.005
    enough_factor: float = 1.003
    long_alphas: float = 100.0
    usual_shard_pieces: int = 8
    most_resized: int = 6
    most_turned: int = 3
    turned_factor: float = 1.02
    hub_gain: float = 1.1
    most_hub_ranks: int = 100
    most_direct_hub_ranks: int = 300
    hub_only_load: float = 0.75
    hub_only_time: float = 0.9
    most_sized_messages: int = 2_000
    evened_piece_chunks: int = 4
    shared_losses: tuple[tuple[float, float], ...] = ((0.001, 0.02), (0.004, 0.06))
    shared_busy_parts: tuple[float, ...] = (0.4, 0.3, 0.5)
    shared_prices: tuple[tuple[float, float], ...] = ((1.0, 0.1), (0.3, 0.0), (1.0, 0.0))
    shared_full: float = 0.97
    hub_piece_chunks: int = 8
    least_gain_of_roots: float = 1.01
    roots_only_gain: float = 1.15
    least_root_part: float = 0.004
    rival_part: float = 0.35
    short_part: float = 0.1
    root_promise_factor: float = 1.03
    root_parts: tuple[int, ...] = (2, 3, 4)
    most_root_packings: int = 2
    most_root_places: int = 300
    most_shortened: int = 2
    root_work: float = 2.0
    root_work_part: float = 0.2
    root_turn_part: float = 0.5
    root_ticks: int = 20_000
    root_piece_counts: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)
    least_root_pieces: float = 0.25
    root_piece_chunks: int = 8
    most_root_messages: int = 30_000
    round_slacks: tuple[float, ...] = (0.005, 0.02)
    round_ticks: int = 1000
    round_work: float = 0.3
    most_round_transfers: int = 160
    round_counts: tuple[int, ...] = (8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256)
    round_piece_chunks: int = 8
    stretch: float = 4.0
    dispatch_full: float = 0.97
    disjoint_noise: float = 0.5
    path_noise: float = 1e-3
    settling_gap: float = 1e-3
    load_price: float = 0.05
    steadiness: float = 0.5
    hop_price: float = 1e-5
    rail_chunks: tuple[int, ...] = (8, 16, 32, 64, 128)
    rail_tapers: tuple[float, ...] = (
        0.06, 0.08, 0.1, 0.12, 0.14, 0.16, 0.18, 0.2, 0.22, 0.25, 0.28, 0.32, 0.36, 0.4, 0.45, 0.5, 0.6, 0.8,
    )  # fmt: skip
    rail_caps: tuple[float, ...] = (0.25, 0.375, 0.5, 1.0)
    rail_least_chunks: tuple[int, ...] = (1, 2, 3, 4)
    rail_parts: tuple[int, ...] = (1, 2, 3, 4, 6, 9, 12)
    rail_grains: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    rail_calms: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.8)
    rail_calm_chunks: float = 2.5
    rail_hop_price: float = 1.0
    joined_alphas: float = 32.0
    most_rail_messages: int = 12_000
    most_rail_settings: int = 60
    first_rail_tapers: tuple[int, ...] = (3, 7, 12, 16)
    resized_piece_chunks: int = 2
    most_resized_chunks: int = 1024
    chunk_step: int = 2
    least_resized_gain: float = 1e-3
    penalty_steepness: tuple[float, ...] = (40.0, 200.0)
    most_passes: int = 6
    usual_tree_pieces: int = 8
    rounding_full: float = 0.9
    rounding_factor: float = 1.002
    shallow_factor: float = 1.002
    fixed_crossing_price: float = 0.1
    detours: tuple[float, ...] = (0.45, 0.5, 0.6, 0.9)
    most_layered: int = 2
    varied_detours: tuple[float, ...] = (0.2, 0.3, 0.4, 0.45, 0.5, 0.6, 0.9)
    taper_tree_counts: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    most_taper_tree_sets: int = 3
    taper_piece_counts: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8)
    shared_pieces: tuple[int, ...] = (6, 8, 10, 13, 16, 20)
    taper_falls: tuple[float, ...] = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
    tapers: tuple[float, ...] = (0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.3)
    first_taper_setting: tuple[int, int, int] = (2, 2, 5)
    most_taper_places: int = 4200
    most_taper_messages: int = 16_000
    taper_piece_chunks: int = 8
    taper_load_digits: int = 3
    shared_chunks: int = 256


PARAMS = Params()
