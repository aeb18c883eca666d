"""Table of a machine's ports, equal ones in one row under a name with ranges: ``node 0-3 ib0-7 in``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from taccl_py.report.tables import first_rows_table
from taccl_py.units import format_ranks, natural_key

if TYPE_CHECKING:
    from rich.table import Table

    from taccl_py.topology.model import Topology

# Numbers that are written as a program writes them; others stay text, as ranges would lose their zeros.
_NUMBER = re.compile(r"(?<![0-9])(0|[1-9][0-9]{0,8})(?![0-9])")

_NODE_OF_RANK = ("node ", " rank ")


def fold_names(names: Iterable[str]) -> list[tuple[str, int]]:
    """Return names that together stand for exactly the given ones, with ranges of numbers, and how many each stands for.

    Numbers become ranges place by place, the last first, where everything else of the names is the same. The node of a rank
    follows from the rank: ``node 0-1 rank 0-15 in`` stands for 16 names.
    """
    groups: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for name in names:
        parts = _NUMBER.split(name)
        groups.setdefault(tuple(parts[::2]), []).append(tuple(parts[1::2]))
    found = []
    for texts, members in groups.items():
        for numbers, count in _ranges(texts, members):
            words = [text + number for text, number in zip(texts, (*numbers, ""), strict=True)]
            found.append(("".join(words), count))
    return sorted(found, key=lambda row: natural_key(row[0]))


def _ranges(texts: tuple[str, ...], members: list[tuple[str, ...]]) -> list[tuple[tuple[str, ...], int]]:
    """Numbers of names with the same texts between them, folded, and how many each row stands for."""
    follows = texts[:2] == _NODE_OF_RANK and len({m[:2] for m in members}) == len({m[1] for m in members})
    rows: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for member in members:
        rows.setdefault(("", *member[1:]) if follows else member, []).append(member)
    for place in reversed(range(int(follows), len(texts) - 1)):
        rows = _merged(rows, place)
    if not follows:
        return [(numbers, len(behind)) for numbers, behind in rows.items()]
    return [((_listed(behind, 0), *numbers[1:]), len(behind)) for numbers, behind in rows.items()]


def _merged(
    rows: dict[tuple[str, ...], list[tuple[str, ...]]], place: int
) -> dict[tuple[str, ...], list[tuple[str, ...]]]:
    """Rows that differ at one place alone become one, with a range there."""
    alike: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for numbers, behind in rows.items():
        alike.setdefault((*numbers[:place], "", *numbers[place + 1 :]), []).extend(behind)
    return {(*others[:place], _listed(behind, place), *others[place + 1 :]): behind for others, behind in alike.items()}


def _listed(members: list[tuple[str, ...]], place: int) -> str:
    return format_ranks(sorted({int(member[place]) for member in members}))


def ports_table(topology: Topology) -> Table:
    """Table of ports; those with the same costs, as many links and alike names are one row."""
    shared = Counter(port for link in topology.links for port in link.ports)
    alike: dict[tuple[int, float, float], list[str]] = {}
    for index, port in enumerate(topology.ports):
        alike.setdefault((shared[index], port.alpha_us, port.beta_us_per_mb), []).append(port.name)
    rows = []
    for (links, alpha_us, beta_us_per_mb), names in alike.items():
        rate = "" if beta_us_per_mb <= 0 else f"{1000 / beta_us_per_mb:.4g}"
        for name, count in fold_names(names):
            rows.append((name, str(count), str(links), f"{alpha_us:g}", f"{beta_us_per_mb:g}", rate))
    rows.sort(key=lambda row: natural_key(row[0]))
    columns = ("port", "ports", "links that share it", "alpha us", "beta us/MB", "GB/s")
    return first_rows_table("Ports", columns, rows)
