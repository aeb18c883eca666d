"""NCCL's example tuner plug-in: ``NCCL_TUNER_CONFIG_FILE``, a CSV file.

Format: ``plugins/tuner/example`` of NCCL 2.30.7: ``collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,
numPipeOps,regBuff``, both sizes included, the first line that matches counts, a line has at most 255 characters, and ``#`` begins a comment.
Sizes are bytes as nccl-tests counts them. -1 matches any node, rank and so on; but as a number of channels it leaves the plug-in's own 1
(``plugin.c``), where 0 leaves NCCL's, so 0 is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from taccl_py.baselines.tuner.columns import columns, parsed_kind, parsed_word, whole_number
from taccl_py.baselines.tuner.rules import NCCL_KINDS, NCCL_PROTOCOLS, NCCL_WORDS, TunerRule
from taccl_py.errors import InputError
from taccl_py.units import SizeRange

_NAMES = "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"
_REQUIRED, _MOST = 8, 10
_OWN_CHANNELS, _ANY = 0, -1


def write_nccl(rules: Sequence[TunerRule], ours: Sequence[SizeRange]) -> str:
    """Text of the file; where our files are faster is told in comments."""
    lines = [f"# {_NAMES}", *comments(ours)]
    lines += [
        f"{rule.kind},{rule.low_bytes},{rule.high_bytes},{rule.algorithm},{rule.protocol},{_OWN_CHANNELS},{rule.num_nodes},{rule.num_ranks},"
        f"{_ANY},{_ANY}"
        for rule in rules
    ]
    return "\n".join([*lines, ""])


def comments(ours: Sequence[SizeRange]) -> list[str]:
    """Lines that tell where our files are faster."""
    return [f"# from {each.low_bytes} to {each.high_bytes} bytes installed files of ours are faster" for each in ours]


def read_nccl(text: str, path: str) -> tuple[TunerRule, ...]:
    """Rules of a file; of numbers of channels, pipelined operations and registered buffers nothing is kept.

    Raises
    ------
    InputError
        If a line is wrong; the plug-in would take a word that it does not know for another.
    """
    rules = []
    for place, cells in columns(text):
        field = f"line {place}"
        if not _REQUIRED <= len(cells) <= _MOST:
            raise InputError(
                f"has {len(cells)} columns, {_REQUIRED} to {_MOST} are needed: {_NAMES}", path=path, field=field
            )
        kind = parsed_kind(cells[0], NCCL_KINDS, path, field)
        low, high = (whole_number(cell, path, field) for cell in cells[1:3])
        if low > high:
            raise InputError(
                f"counts down from {low} to {high} bytes; write the smaller size first", path=path, field=field
            )
        algorithm = parsed_word(cells[3], NCCL_WORDS.values(), "algorithm", path, field)
        protocol = parsed_word(cells[4], NCCL_PROTOCOLS.values(), "protocol", path, field)
        _, nodes, ranks = (whole_number(cell, path, field, least=_ANY) for cell in cells[5:8])
        rules.append(TunerRule(kind, low, high, algorithm, protocol, ranks, nodes))
    return tuple(rules)
