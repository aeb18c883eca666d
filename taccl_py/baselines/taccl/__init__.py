"""TACCL as published, as a baseline: three stages solved one after the other, and the lowering of its release.

Written by us after the paper (A. Shah et al., "TACCL: Guiding Collective Algorithm Synthesis using Communication Sketches",
NSDI 2023) and after what its release (microsoft/taccl 426bd1e) was observed to do; none of its code is here.

::

    view         the machine as TACCL sees it through a sketch
    routing      stage 1: which links each chunk takes, with loads but without order
    ordering     stage 2: who goes first at links and switch ports, by a greedy rule
    contiguity   stage 3: exact times in that order, and who shares the alpha of a link between nodes
    program      its lowering: steps, threadblocks that send and receive, instances
    method       all of it, for every sketch, seed and number of chunks and instances

Where the release is wrong or fails it is repaired here, in its favour: chunks sent together start together (there the
equation is dead), AllReduce moves a shard of each rank (there one rank's shard stands for all), relays that a sketch demands
may lie off the shortest path (there such sketches have no answer), sums wait for nobody but their parts, and costs are not
truncated to whole numbers. Each size is solved with the costs of that size.
"""
