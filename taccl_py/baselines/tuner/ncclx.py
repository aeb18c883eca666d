"""The tuner that NCCLX has built in: ``NCCLX_TUNER_CONFIG_FILE``, CSV or, by the extension ``.json``, JSON.

Format: ``comms/ncclx/meta/tuner/docs/design.md`` of meta-pytorch/torchcomms 59426ba: columns ``collective,bytesPerRank,algorithm,
protocol,channels,nNodes,nLocalRanks,chunkSize``, or ``{"rules": [{"filter": ..., "config": ...}]}``; ranges as ``[a,b)``; the first rule that
matches counts; a file with a mistake ends the communicator's initialisation. Sizes are bytes over ranks, rounded down, so a range ends at a
multiple of the ranks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from taccl_py.baselines.tuner.columns import columns, parsed_kind, parsed_word, whole_number
from taccl_py.baselines.tuner.nccl_csv import comments
from taccl_py.baselines.tuner.rules import NCCL_KINDS, NCCL_PROTOCOLS, NCCL_WORDS, TunerRule
from taccl_py.errors import InputError, LoweringError
from taccl_py.jsonio import Fields, canonical_json, parse_json
from taccl_py.units import SizeRange

_NAMES = "collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks"
_REQUIRED, _MOST = 7, 8
_OWN_CHANNELS = -1
_RANGE = re.compile(r"([\[(])\s*([0-9]+)\s*,\s*([0-9]+)\s*([\])])")


def aligned(rules: Sequence[TunerRule]) -> tuple[TunerRule, ...]:
    """The rules with sizes that are the same for all ranks: those that begin inside a multiple of the ranks begin at the next one.

    Raises
    ------
    LoweringError
        If nodes have different numbers of ranks, or no size that was compared is the same for all ranks.
    """
    for rule in rules:
        if rule.num_ranks % rule.num_nodes:
            raise LoweringError(
                f"no tuner file for NCCLX: it counts ranks per node, and {rule.num_ranks} ranks are on {rule.num_nodes} nodes",
                runtime="ncclx",
                limit="tuner",
            )
    found = []
    for rule in rules:
        low, end = (_next_multiple(size, rule.num_ranks) for size in (rule.low_bytes, rule.high_bytes + 1))
        if low < end:
            found.append(
                TunerRule(rule.kind, low, end - 1, rule.algorithm, rule.protocol, rule.num_ranks, rule.num_nodes)
            )
    if not found:
        raise LoweringError(
            f"no tuner file for NCCLX: it counts bytes of a rank, and no size compared is a multiple of {rules[0].num_ranks} bytes; widen --sizes",
            runtime="ncclx",
            limit="tuner",
        )
    return tuple(found)


def _next_multiple(size: int, of: int) -> int:
    return -(-size // of) * of


def _range(rule: TunerRule) -> str:
    """Bytes of a rank, the last not included."""
    return f"[{rule.low_bytes // rule.num_ranks},{(rule.high_bytes + 1) // rule.num_ranks})"


def write_csv(rules: Sequence[TunerRule], ours: Sequence[SizeRange]) -> str:
    """CSV of rules that are aligned; where our files are faster is told in comments."""
    lines = [f"# {_NAMES}", *comments(ours)]
    lines += [
        f"{rule.kind},{_range(rule)},{rule.algorithm},{rule.protocol},{_OWN_CHANNELS},{rule.num_nodes},{rule.num_ranks // rule.num_nodes}"
        for rule in rules
    ]
    return "\n".join([*lines, ""])


def write_json(rules: Sequence[TunerRule]) -> str:
    """JSON of rules that are aligned, which has no room for comments."""
    found = [
        {
            "filter": {
                "collective": str(rule.kind), "bytesPerRank": _range(rule), "nNodes": rule.num_nodes,
                "nLocalRanks": rule.num_ranks // rule.num_nodes,
            },
            "config": {"algorithm": rule.algorithm, "protocol": rule.protocol},
        }
        for rule in rules
    ]  # fmt: skip
    return canonical_json({"rules": found})


def read_ncclx(text: str, path: str) -> tuple[TunerRule, ...]:
    """Rules of a file, JSON if its name ends so, that names nodes and ranks per node.

    Raises
    ------
    InputError
        If a rule is wrong, or is for any number of nodes or ranks.
    """
    if path.endswith(".json"):
        fields = Fields(parse_json(text, path), path)
        return tuple(
            _rule(_cells(item, path, place), path, f"rules/{place}") for place, item in enumerate(fields.items("rules"))
        )
    rules = []
    for place, cells in columns(text):
        if not _REQUIRED <= len(cells) <= _MOST:
            raise InputError(
                f"has {len(cells)} columns, {_REQUIRED} or {_MOST} are needed: {_NAMES}",
                path=path,
                field=f"line {place}",
            )
        rules.append(_rule(cells, path, f"line {place}"))
    return tuple(rules)


def _cells(item: Any, path: str, place: int) -> list[str]:
    """A rule of JSON as the columns of a line."""
    rule = Fields(item, path, f"/rules/{place}")
    chosen, then = rule.object("filter"), rule.object("config")
    nodes, local = (chosen.integer(key, least=1) for key in ("nNodes", "nLocalRanks"))
    return [
        chosen.text("collective"), chosen.text("bytesPerRank"), then.text("algorithm"), then.text("protocol"), str(_OWN_CHANNELS), str(nodes),
        str(local),
    ]  # fmt: skip


def _rule(cells: Sequence[str], path: str, field: str) -> TunerRule:
    kind = parsed_kind(cells[0], NCCL_KINDS, path, field)
    algorithm = parsed_word(cells[2], NCCL_WORDS.values(), "algorithm", path, field)
    protocol = parsed_word(cells[3], NCCL_PROTOCOLS.values(), "protocol", path, field)
    whole_number(cells[4], path, field, least=_OWN_CHANNELS)
    nodes, local = (whole_number(cell, path, field, least=1) for cell in cells[5:7])
    match = _RANGE.fullmatch(cells[1])
    low, end = (int(match[2]) + (match[1] == "("), int(match[3]) + (match[4] == "]")) if match else (0, 0)
    if low >= end:
        raise InputError(f"found the range {cells[1]!r}, write it as [a,b) with a below b", path=path, field=field)
    ranks = nodes * local
    return TunerRule(kind, low * ranks, end * ranks - 1, algorithm, protocol, ranks, nodes)
