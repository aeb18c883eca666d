"""Boxes of GPUs on one switch each, with a NIC for every GPU."""

from taccl_py.topology.model import Link, Port
from tests.instances import machine

PER_BOX = 8
SWITCH_ALPHA_US, NIC_ALPHA_US = 0.3, 2.6


def boxes(count, switch_gbps=300.0, nic_gbps=25.0):
    """Every GPU has a port into and out of its switch and into and out of its NIC; NICs reach all other boxes."""
    ranks = range(count * PER_BOX)
    ports, links = [], []
    for rank in ranks:
        for name, alpha_us, gbps in (("switch", SWITCH_ALPHA_US, switch_gbps), ("nic", NIC_ALPHA_US, nic_gbps)):
            ports += [Port(f"{rank} {name} {way}", alpha_us, 1000 / gbps) for way in ("out", "in")]
    for src in ranks:
        for dst in ranks:
            if src == dst:
                continue
            same = src // PER_BOX == dst // PER_BOX
            first = 0 if same else 2
            alpha_us, gbps = (SWITCH_ALPHA_US, switch_gbps) if same else (NIC_ALPHA_US, nic_gbps)
            ends = (4 * src + first, 4 * dst + first + 1)
            links.append(Link(src, dst, alpha_us, 1000 / gbps, ports=ends))
    turn = tuple(rank // PER_BOX * PER_BOX + (rank + 1) % PER_BOX for rank in ranks)
    shift = tuple((rank + PER_BOX) % len(ranks) for rank in ranks)
    symmetry = [turn] if count == 1 else [turn, shift]
    return machine(len(ranks), links, ports, tuple(rank // PER_BOX for rank in ranks), symmetry, f"boxes-{count}")
