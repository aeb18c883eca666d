"""Numbers of plans for damaged machines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Params:
    """Numbers of plans for damaged machines.

    Attributes
    ----------
    completed_part
        Where one in so many pairs of places of two nodes is linked, all are taken to have been. Guess.
    alike_part
        Nodes of two sorts are built alike if at least this part of the kinds of links and ports that any has are in both. Guess.
    similar_rates
        Rates of nodes of one sort differ by at most this factor; those of generations of GPUs and NICs by 1.5 or more. Guess.
    direct_part
        Part of the time in which a Broadcast is planned on the damaged machine as it is, before plans of the whole one are mended. Measured:
        256 MiB on 4 x ndv5, a NIC of two nodes gone, effort quick, 1126 -> 911 us, where it came last and had what time was left.
    simpler_part
        Part of the time in which plans without slow links, or for nodes that are all as slow as the slowest, are sought. Guess.
    simpler_bound_factor
        Such plans are sought first where their own bound is at most so many times the demand's. Guess.
    levelled_part
        Part of the time that is kept for plans for slow nodes everywhere where their bound is further above. Measured: h100-x4+a100-x4,
        AllReduce of 64 MiB, effort quick, 674.3 -> 634.3 us; h100+a100-x3, 256 MiB, 2157 -> 2076 us; sought before others, they left h100-x2+
        a100-x2 no time for 256 MiB, 1704 -> 2076 us.
    levelled_promise
        They are sought then if that bound is less than so many times what is found by then. Guess.
    inside_part
        Part of the rest for plans of the machine with each node as it was, where nodes are of several sorts and one of them is damaged.
        Measured: h100+a100, a NIC of the latter at half, AllReduce of 16 MiB, effort quick, 149.0 -> 120.8 us.
    sizing_part
        Part of the time kept for finding sizes of these plans of a Broadcast. Measured: bench section damaged, 64 MiB on four nodes, 519.6 -> 497.8
        us, for plans on the lanes that are whole.
    whole_part
        Part of the time in which plans of the whole machine are sought. Guess.
    whole_messages_a_second
        Messages of a plan of the whole machine for each second of the search, at most: with detours they become several times as many,
        which are timed whatever time is left. Measured: two H100 and two A100 nodes, Broadcast of 1 GiB in 5 s, 6851 -> 6207 us in half the time.
    weighing_part
        Part of the rest in which they are weighed; what is left is for writing out. Guess.
    most_plans
        Plans of an AllReduce with weights that are written out, the fastest ones first. Measured: of eight plans on ndv4 with a NIC slow or
        gone, 64 MiB, one of the first two was the best.
    most_other_plans
        The same of others, whose times in few chunks tell less. Measured: the best of eight is the third for AllGather on 4 x ndv4 with a NIC at
        half, 318.0 -> 313.9 us; Broadcast, 2 x ndv4, a NIC at half, 64 MiB in 5 s, 397 or 419 us by run -> 397.
    alike
        Factor within which estimates of others are about the same. Measured: as `most_other_plans`, AllGather, 318.0 us by the first plan
        or 313.9.
    plan_factor
        Plans that take so many times as long as the best one are left out. Guess.
    most_ranks_avoided
        Damaged ranks up to which others of their nodes stand in for them. Guess.
    most_entries
        Entries of the linear program for weights. Guess.
    chunks_of_part
        Chunks that parts of blocks have on average, at least: the fewer, the worse whole chunks fit the weights. Guess.
    finer
        Times as many chunks from one try to the next, at least. Measured: bench section damaged, AllReduce; with 4 up to 0.2 % more.
    most_chunks
        Chunks of all ranks together that a plan may be cut into. Guess.
    least_gain
        Part of the time that more chunks have to save. Measured: as `finer`.
    most_justified_messages
        Messages up to which a mended plan is justified, whatever time is left, and the best one's starts are searched. Measured: searching
        saves 0.3 % of AllGather of 64 MiB on 4 x ndv4 with a NIC at half.
    exchanged_chunks
        Chunks for each pair of ranks of an AllToAll with balanced lanes. Guess.
    most_exchanging_ranks
        Ranks up to which lanes of an AllToAll are balanced, which looks at every pair. Guess.
    """

    completed_part: int = 2
    alike_part: float = 0.75
    similar_rates: float = 1.2
    direct_part: float = 0.5
    simpler_part: float = 0.6
    simpler_bound_factor: float = 1.05
    levelled_part: float = 0.4
    levelled_promise: float = 0.95
    inside_part: float = 0.4
    sizing_part: float = 0.2
    whole_part: float = 0.6
    whole_messages_a_second: int = 1_600
    weighing_part: float = 0.4
    most_plans: int = 2
    most_other_plans: int = 4
    alike: float = 1.01
    plan_factor: float = 1.1
    most_ranks_avoided: int = 16
    most_entries: int = 5_000_000
    chunks_of_part: int = 16
    finer: int = 2
    most_chunks: int = 16_384
    least_gain: float = 0.0005
    most_justified_messages: int = 6_000
    exchanged_chunks: tuple[int, ...] = (1, 2, 4)
    most_exchanging_ranks: int = 128


PARAMS = Params()
