"""Helpers for all topology tests: small node files, and an independent check of symmetry."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taccl_py.topology.model import Topology


def keeps_machine(topology: Topology, image: tuple[int, ...]) -> bool:
    """Whether renaming rank r to image[r], and the ports in one fitting way, gives the same machine again."""
    if sorted(image) != list(range(topology.num_ranks)):
        return False
    nodes = Counter(topology.node_of)
    if {node: len({topology.node_of[image[r]] for r in topology.node_ranks[node]}) for node in nodes} != dict.fromkeys(
        nodes, 1
    ):
        return False
    new_port: dict[int, int] = {}
    for pair, links in topology.links_between.items():
        images = topology.links_between.get((image[pair[0]], image[pair[1]]), ())
        if len(images) != len(links):
            return False
        for mine, theirs in zip(links, images, strict=True):
            for old, new in zip(topology.links[mine].ports, topology.links[theirs].ports, strict=False):
                new_port.setdefault(old, new)
    if len(set(new_port.values())) != len(new_port):
        return False
    before: Counter[Any] = Counter()
    after: Counter[Any] = Counter()
    for link in topology.links:
        cost = (link.alpha_us, link.beta_us_per_mb, link.latency_us)
        before[link.src, link.dst, cost, link.ports] += 1
        after[image[link.src], image[link.dst], cost, tuple(new_port.get(p, -1) for p in link.ports)] += 1
    same_cost = all(
        (topology.ports[old].alpha_us, topology.ports[old].beta_us_per_mb)
        == (topology.ports[new].alpha_us, topology.ports[new].beta_us_per_mb)
        for old, new in new_port.items()
    )
    return before == after and same_cost


@pytest.fixture(scope="session")
def is_automorphism() -> Callable[[Topology, tuple[int, ...]], bool]:
    return keeps_machine


@pytest.fixture
def write_json(tmp_path: Path) -> Callable[[Any], Path]:
    """Write a JSON value (or a text, as it is) to a file of its own and return the path."""

    def write(value: Any, name: str = "machine.json") -> Path:
        path = tmp_path / name
        path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
        return path

    return write
