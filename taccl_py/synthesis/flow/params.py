"""Numbers of engine ``flow``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Params:
    """Numbers of engine ``flow``.

    Attributes
    ----------
    most_parts
        Parts into which the data of a pair of ranks is cut, at most. Guess.
    most_ordered
        Routings, those of the least load first, whose messages are put in order. Guess.
    least_gain
        Part of the time that the load of another routing has to promise. Guess.
    most_entries
        Entries of the table of chunks and links, which has to fit into memory. Guess.
    most_messages
        Messages of several parts, at most; one part is always tried. Guess.
    soon_seconds
        Seconds that a first answer may take after an interrupt. Guess.
    enough_gap
        Gap to the load of the fullest resource at which an order is not improved further. Guess.
    fewest_restarts
        Restarts of list scheduling, at least. Guess.
    most_restarts
        Restarts of list scheduling where messages stay apart, at most. Measured: AllToAll of 64 MiB on seven machines, none slower with 6 than with
        40, as plans are justified.
    restart_arcs
        Arcs that all of these restarts may schedule together. Guess.
    most_exact_arcs
        Arcs up to which CP-SAT orders messages. Measured: AllToAll of 64 KiB to 16 MiB on nine machines, dragonfly:1 (30 messages) gained by it, 15 and
        17 %, and the others nothing.
    exact_work
        Deterministic time of that solve. Guess.
    most_joined_restarts
        Restarts where chunks share messages, at most: all that waits is looked at at every moment. Guess.
    joined_restart_arcs
        Arcs that all of these restarts may schedule together, and arcs up to which parts of a path may share messages.
        Guess.
    most_rounds
        Rounds of neighbourhood search, at most. Guess.
    round_arcs
        Arcs that all rounds may have together. Guess.
    least_flow_part
        Part of the largest flow below which a flow is none. Guess.
    most_more_paths
        Shortest paths that are added for each chunk to those of the flow. Guess.
    hop_price
        Price of a hop as a part of the dearest link's. Guess.
    load_units
        Units of the fullest resource's load in the integer model, whose error is a small part of them. Guess.
    load_slack
        Relative load that may be added where fewer links are opened. Guess.
    rounding_work
        Deterministic time of both solves of a rounding. Guess.
    """

    most_parts: int = 8
    most_ordered: int = 4
    least_gain: float = 0.003
    most_entries: int = 200_000_000
    most_messages: int = 60_000
    soon_seconds: float = 5.0
    enough_gap: float = 0.002
    fewest_restarts: int = 2
    most_restarts: int = 6
    restart_arcs: int = 12_000
    most_exact_arcs: int = 300
    exact_work: float = 1.0
    most_joined_restarts: int = 12
    joined_restart_arcs: int = 4_000
    most_rounds: int = 6
    round_arcs: int = 1_000
    least_flow_part: float = 1e-6
    most_more_paths: int = 12
    hop_price: float = 1e-4
    load_units: int = 1_000_000
    load_slack: float = 1e-3
    rounding_work: float = 0.3


PARAMS = Params()
