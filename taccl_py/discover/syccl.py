"""Machines of SyCCL's configurations: hosts of equal GPUs and NICs under switches in layers.

The format is that of the ``h800conf`` and ``v100conf`` that SyCCL's experiments generate (aliyun/syccl, SIGCOMM 2025). ``hosts``
counts hosts, GPUs and NICs and says what joins the GPUs of one: ``nvswitch``, or a list of neighbours in ``host_links``. ``topo`` has
the layers: ``host``, ``nic``, and switches over them, ``multirail`` (switch i joins the i-th NICs of all hosts) or ``pod`` (it joins
hosts that follow each other, or pods that do). ``link_spec`` has their costs in MB/us and us.

A message is sent in one layer: it has the latency of that, occupies the sender's and the receiver's NIC, and, above the first switches,
the trunks of the pods that it leaves and enters.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import product
from typing import Any

from taccl_py.errors import InputError
from taccl_py.jsonio import Fields
from taccl_py.topology.files import require_connected
from taccl_py.topology.model import Link, Medium, Topology
from taccl_py.topology.template import MAX_LINKS, AlphaBeta, PortTable
from taccl_py.units import MAX_COST_US, MAX_RANKS

_NVSWITCH = "nvswitch"
_LAYERS = ("local", "host", "nic", "switch")


@dataclass(frozen=True)
class _Switches:
    """A layer of switches: the cost of a port to below, and which of them each pair of host and NIC is under."""

    cost: AlphaBeta
    number: int
    of: dict[tuple[int, int], int]


def is_syccl(value: Any) -> bool:
    """True if a JSON value is a configuration of SyCCL."""
    return isinstance(value, dict) and {"hosts", "topo", "link_spec"} <= value.keys()


def read_syccl(value: Any, path: str, name: str) -> Topology:
    """Machine of a configuration of SyCCL.

    Parameters
    ----------
    value
        The JSON value.
    path
        File name for error messages.
    name
        Name of the machine.

    Raises
    ------
    InputError
        If a field is wrong, or some rank cannot reach another.
    """
    return _Reader(Fields(value, path), path).machine(name)


class _Reader:
    """Walks a configuration once."""

    def __init__(self, fields: Fields, path: str) -> None:
        self.fields, self.path = fields, path
        hosts = fields.object("hosts")
        self.hosts = hosts.integer("host_num", least=1, most=MAX_RANKS)
        self.gpus = hosts.integer("host_gpu_num", least=1, most=MAX_RANKS)
        self.nics = hosts.integer("host_nic_num", least=0 if self.hosts == 1 else 1, most=MAX_RANKS)
        self.joined = hosts.text("host_links", _NVSWITCH)
        if self.hosts * self.gpus > MAX_RANKS:
            hosts.fail("host_num", f"found {self.hosts} hosts of {self.gpus} GPUs, more than {MAX_RANKS} ranks")
        if self.nics and self.gpus % self.nics:
            hosts.fail("host_nic_num", f"found {self.nics}, which does not divide the {self.gpus} GPUs of a host")
        self.table, self.links = PortTable(), list[Link]()
        self.host, self.nic = AlphaBeta(0.0, 0.0), AlphaBeta(0.0, 0.0)
        self.switches: list[_Switches] = []

    def machine(self, name: str) -> Topology:
        """Links of all layers."""
        self._read_layers()
        self._join_gpus()
        self._join_hosts()
        node_of = tuple(host for host in range(self.hosts) for _ in range(self.gpus))
        inside = Medium.NVLINK if self.joined == _NVSWITCH or "nvlink" in self.joined else Medium.UNKNOWN
        source = "a configuration of SyCCL, 1 MB/us as 1000 GB/s; a message has the latency of the highest layer that it passes"
        try:
            machine = Topology(name, source, node_of, self.table.ports, tuple(self.links), inside=inside)
            require_connected(machine)
        except InputError as error:
            raise InputError(error.what, path=self.path) from None
        return machine

    def _read_layers(self) -> None:
        specs = self.fields.object("link_spec")
        for place, item in enumerate(self.fields.items("topo")):
            layer = Fields(item, self.path, f"/topo/{place}")
            kind, word = layer.choice("type", _LAYERS), layer.text("link_spec")
            if not specs.has(word):
                layer.fail("link_spec", f"found {word!r}, which link_spec does not have")
            spec = specs.object(word)
            rate = spec.number("bw_mbpus", above=1e-9)
            cost = AlphaBeta(spec.number("lat_us", least=0.0, most=MAX_COST_US), 1 / rate)
            if kind == "host":
                self.host = cost
            elif kind == "nic":
                self.nic = cost
            elif kind == "switch":
                self._read_switches(layer, cost)
        if self.hosts > 1 and not self.switches:
            self.fields.fail("topo", f"has no layer of switches, which {self.hosts} hosts need")
        if self.gpus > 1 and not self.host.beta_us_per_mb:
            self.fields.fail("topo", f"has no layer of type host, which {self.gpus} GPUs of a host need")

    def _read_switches(self, layer: Fields, cost: AlphaBeta) -> None:
        number = layer.integer("switch_num", least=1)
        is_rails = layer.choice("switch_topo", ("multirail", "pod")) == "multirail"
        pairs = [(host, nic) for host in range(self.hosts) for nic in range(self.nics)]
        if is_rails and self.switches:
            layer.fail("switch_topo", "found 'multirail' above other switches, where only 'pod' is known")
        below = self.switches[-1].number if self.switches else self.nics if is_rails else self.hosts
        what = "switches below" if self.switches else "NICs of a host" if is_rails else "hosts"
        if below % number:
            layer.fail("switch_num", f"found {number}, which does not divide the {below} {what}")
        each = below // number
        under = self.switches[-1].of if self.switches else {(h, n): n if is_rails else h for h, n in pairs}
        self.switches.append(_Switches(cost, number, {pair: under[pair] // each for pair in pairs}))

    def _join_gpus(self) -> None:
        """Links inside hosts."""
        beside = self._neighbours()
        self._require_few(self.hosts * sum(map(len, beside)))
        for first in range(0, self.hosts * self.gpus, self.gpus):
            for src, others in enumerate(beside):
                for dst in others:
                    ports: tuple[int, ...] = ()
                    if self.joined == _NVSWITCH and self.gpus > 2:
                        rate = AlphaBeta(0.0, self.host.beta_us_per_mb)
                        ends = f"GPU {first + src} out", f"GPU {first + dst} in"
                        ports = tuple(self.table.index(end, rate) for end in ends)
                    self.links.append(
                        Link(first + src, first + dst, self.host.alpha_us, self.host.beta_us_per_mb, ports=ports)
                    )

    def _neighbours(self) -> list[list[int]]:
        """For each GPU of a host those that it has a link to."""
        if self.joined == _NVSWITCH:
            return [[other for other in range(self.gpus) if other != gpu] for gpu in range(self.gpus)]
        tables = self.fields.object("host_links")
        if not tables.has(self.joined):
            self.fields.fail(
                "hosts/host_links", f"found {self.joined!r}, use {_NVSWITCH} or a list that host_links has"
            )
        rows = tables.items(self.joined)
        if len(rows) != self.gpus:
            tables.fail(self.joined, f"found {len(rows)} lists, {self.gpus} are needed, one for each GPU of a host")
        lists = Fields({str(gpu): row for gpu, row in enumerate(rows)}, self.path, f"/host_links/{self.joined}")
        found = [sorted(set(lists.integers(str(gpu), least=0)) - {gpu}) for gpu in range(self.gpus)]
        for gpu, others in enumerate(found):
            if others and others[-1] >= self.gpus:
                lists.fail(str(gpu), f"names GPU {others[-1]}, GPUs of a host are 0..{self.gpus - 1}")
        return found

    def _join_hosts(self) -> None:
        """Links between hosts, in the lowest layer in which two NICs are under one switch."""
        if not self.switches:
            return
        share = self.gpus // self.nics
        under: dict[int, list[tuple[int, int]]] = {}  # the ranks (host, GPU) that some path joins
        for host in range(self.hosts):
            for gpu in range(self.gpus):
                under.setdefault(self.switches[-1].of[host, gpu // share], []).append((host, gpu))
        per_host = [Counter(host for host, _ in ranks) for ranks in under.values()]
        self._require_few(len(self.links) + sum(c.total() ** 2 - sum(n * n for n in c.values()) for c in per_host))
        for ranks in under.values():
            for (host, gpu), (other, peer) in product(ranks, ranks):
                if host != other:
                    ends = (host, gpu // share), (other, peer // share)
                    level = next(i for i, each in enumerate(self.switches) if each.of[ends[0]] == each.of[ends[1]])
                    self.links.append(self._far_link(host * self.gpus + gpu, other * self.gpus + peer, ends, level))

    def _far_link(self, src: int, dst: int, ends: tuple[tuple[int, int], tuple[int, int]], level: int) -> Link:
        beta = max(self.nic.beta_us_per_mb, self.switches[0].cost.beta_us_per_mb)
        ports, betas = [], [beta]
        for (host, nic), side in zip(ends, ("out", "in"), strict=True):
            ports.append(self.table.index(f"NIC {nic} of host {host} {side}", AlphaBeta(0.0, beta)))
        for below, layer in zip(self.switches[:level], self.switches[1 : level + 1], strict=True):
            betas.append(layer.cost.beta_us_per_mb)
            for pair, side in zip(ends, ("up", "down"), strict=True):
                trunk = f"switch {below.of[pair]} of layer {self.switches.index(below)} {side}"
                ports.append(self.table.index(trunk, AlphaBeta(0.0, layer.cost.beta_us_per_mb)))
        alpha_us = self.nic.alpha_us + self.switches[level].cost.alpha_us
        return Link(src, dst, alpha_us, max(betas), ports=tuple(ports))

    def _require_few(self, links: int) -> None:
        if links > MAX_LINKS:
            raise InputError(f"has more than {MAX_LINKS} links; import a smaller machine", path=self.path)
