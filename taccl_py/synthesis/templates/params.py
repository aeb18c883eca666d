"""Numbers of engine ``templates``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Params:
    """Numbers of engine ``templates``.

    Attributes
    ----------
    most_runners_up
        Schedules that are kept beside the best one. Guess.
    runner_up_factor
        Times as slow as the best one that they may be. Guess.
    most_arrivals
        Arrivals of chunks up to which templates of several chunks per rank are timed: more take seconds. Guess.
    compared_messages
        Messages of templates whose estimates are compared before the first of them is timed. Guess.
    most_packed_bytes
        Bytes up to which chunks that lie apart are copied together; copies of more take longer than the alphas that
        they save. Measured: two MI250X nodes, AllToAll of 256 KiB, 33.6 -> 22.0 us.
    copy_factor
        Part of the time that may be left by copies that are not needed otherwise. Measured: as `most_packed_bytes`.
    kept_promise
        Times what was promised that a plan may take before it is also sent in its own order of what can be sent. Measured: Broadcast of
        64 MiB on 4 x ndv5, 244.7 -> 240.8 us; AllReduce of 1 MiB on 2 x ndv2, 140.7 -> 136.6.
    most_packed_axes
        Axes of a grid, with a hop of a chunk on each, where messages can be packed. Guess.
    most_axes
        Axes of a grid where messages cannot be packed. Guess.
    pipeline_pieces
        Numbers of pieces of a pipeline. Guess.
    most_pipeline_chunks
        Chunks of a pipeline. Guess.
    most_pipeline_messages
        Messages of a pipeline. Guess.
    least_pipeline_gain
        Part of the time that more pieces have to save. Guess.
    root_pieces
        Numbers of pieces of a Broadcast. Guess.
    most_pipelines
        Pipelines that are written out. Measured: a rack of 72 GB200, Broadcast of 1 GiB, 2396 -> 1319 us.
    order_tries
        Ranks that are tried before the search for an order of ranks gives up. Guess.
    slowest_link_limits
        Limits on the slowest link of a cycle that are tried before all links may be used. Guess.
    small_message_factor
        Times that an empty message takes up to which a message is small. Guess.
    most_small_ranks
        Ranks up to which messages are small at all: among more, their copies are too many. Guess.
    most_rings
        Rings that share the work. Guess.
    ring_load_factor
        Part of the load that another ring may leave. Guess.
    most_torus_plans
        Methods on a routed torus that are timed, of those that promise most. Guess.
    most_meeting_links
        Links of a rank beyond which a meeting gains nothing over an exchange. Guess.
    share_pieces
        Numbers of pieces of an AllReduce with unequal shares. Guess.
    share_finer
        Times as many chunks from one try of unequal shares to the next, at least. Guess.
    most_share_chunks
        Chunks of all ranks together in which unequal shares are written down. Guess.
    most_share_messages
        Messages of an AllReduce with unequal shares. Guess.
    least_share_difference
        Part by which the largest share is larger than if all were equal, at least. Guess.
    """

    most_runners_up: int = 8
    runner_up_factor: float = 1.25
    most_arrivals: int = 1 << 18
    compared_messages: int = 1 << 15
    most_packed_bytes: int = 1 << 19
    copy_factor: float = 0.98
    kept_promise: float = 1.02
    most_packed_axes: int = 5
    most_axes: int = 3
    pipeline_pieces: tuple[int, ...] = tuple(1 << bit for bit in range(11))
    most_pipeline_chunks: int = 1024
    most_pipeline_messages: int = 600_000
    least_pipeline_gain: float = 0.005
    root_pieces: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    most_pipelines: int = 3
    order_tries: int = 3000
    slowest_link_limits: int = 3
    small_message_factor: float = 2.0
    most_small_ranks: int = 128
    most_rings: int = 8
    ring_load_factor: float = 0.99
    most_torus_plans: int = 8
    most_meeting_links: int = 8
    share_pieces: tuple[int, ...] = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
    share_finer: int = 2
    most_share_chunks: int = 4096
    most_share_messages: int = 32_768
    least_share_difference: float = 0.01


PARAMS = Params()
