"""Topology dumps of NCCL and RCCL (``NCCL_TOPO_DUMP_FILE``), and the links of their graph dumps (``NCCL_GRAPH_DUMP_FILE``).

Element and attribute meanings are those of NCCL 2.30.7's ``graph/topo.cc`` and ``graph/xml.cc``; RCCL writes ``xgmi`` where
NCCL writes ``nvlink``. Hosts that one NVLink switch joins, as the trays of a rack, are one node here, whether one dump
holds them (NCCL writes ``host_hash`` at their CPUs) or each has a dump of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NoReturn
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from taccl_py.discover.gpus import model_of_architecture
from taccl_py.discover.rates import (
    DEFAULT_NET_GBPS,
    DEFAULT_PCI_GBPS,
    nvlink_gbps,
    pci_gbps,
    socket_gbps,
    xgmi_gbps,
)
from taccl_py.discover.server import Box, DeviceKind, GpuLink, NetPort
from taccl_py.errors import InputError
from taccl_py.topology.catalog import list_topologies, name_of_file
from taccl_py.topology.model import Medium

# NCCL's and RCCL's names of paths between two GPUs (``graph/topo.cc``): NVB passes one other GPU.
_NVLINK_PATHS = ("LOC", "NVL", "NVB", "XGMI")
_PCIE_PATHS = ("C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
# Paths over PCIe switches alone between GPUs and NICs that write into their memory; without GPUDirect RDMA NCCL says PHB.
_NEAR_PATHS = ("PIX", "PXB")
_EFA = ("efa", "rdmap")  # names of NICs that do not keep the bytes of a store together
_NVSWITCH, _CPU = "0x068000", "0x068001"
_FABRIC = re.compile(r"f+:f+:f+\.[0-9a-f]")  # the bus that NCCL writes for a switch
_MBITS_PER_GBPS = 8000
_VIRTUAL_GBPS = 5000.0  # a NIC without a place on the PCIe bus
_LOCAL_GBPS = 5000.0  # between switches of one card, and between the parts of one GPU and its slot
_MOST_OF_A_RACK = 72  # GPUs on one NVLink switch
_MOST_GBPS = 1e6  # beyond any machine; more is a slip of the pen


def parse_xml_root(text: str, path: str) -> Element:
    """Root element of an XML text.

    Raises
    ------
    InputError
        If it is no XML.
    """
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise InputError(f"is not XML: {error}; dump the topology again", path=path) from None


def read_topology_dumps(roots: Sequence[Element], paths: Sequence[str]) -> Box:
    """Server of a topology dump, or the trays of a rack that several dumps describe.

    Parameters
    ----------
    roots
        The elements ``system``.
    paths
        File names for error messages.

    Raises
    ------
    InputError
        If an element or an attribute is wrong, a file is an input of NCCL (``NCCL_TOPO_FILE``) and no dump, or a host has no NVLink to
        the others.
    """
    for root, path in zip(roots, paths, strict=True):
        _require_dump(root, path)
    _require_joined(roots, paths[0])
    return _TopologyDump(len(_hosts(roots)) > 1).read(roots, paths)


def are_trays(roots: Sequence[Element]) -> bool:
    """True if dumps are of trays of one rack, whose GPUs are all on one NVLink switch.

    That is so where the GPUs of each are on an NVLink switch, there are no more of them than a rack has, and one dump has
    several hosts, or the CPUs are Grace's: its trays have no switch of their own.
    """
    switched = [any(link.get("tclass") == _NVSWITCH for link in root.iter("nvlink")) for root in roots]
    cpus = [cpu for root in roots for cpu in root.findall("cpu")]
    hosts, most_in_one = len(_hosts(roots)), max(len(_hosts([root])) for root in roots)
    grace = all(cpu.get("arch") == "arm64" for cpu in cpus)
    if len(roots) < 2 or not all(switched) or not (most_in_one > 1 or (grace and hosts == len(roots))):
        return False
    return sum(_gpus_of_hosts(roots).values()) <= _MOST_OF_A_RACK


def _host(cpu: Element, number: int) -> str:
    """Identity of a CPU's host; `number` is that of the dump, which counts where NCCL wrote no hash."""
    return cpu.get("host_hash") or f"dump {number}"


def _hosts(roots: Sequence[Element]) -> set[str]:
    return {_host(cpu, number) for number, root in enumerate(roots) for cpu in root.findall("cpu")}


def is_tray(root: Element) -> bool:
    """True if a dump is of one host with Grace CPUs whose GPUs are on an NVLink switch, which is then that of a rack."""
    grace = all(cpu.get("arch") == "arm64" for cpu in root.findall("cpu"))
    return grace and len(_hosts([root])) == 1 and any(link.get("tclass") == _NVSWITCH for link in root.iter("nvlink"))


def _gpus_of_hosts(roots: Sequence[Element]) -> dict[str, int]:
    """Number of GPUs of each host; a host that several dumps have counts once."""
    found: dict[str, int] = {}
    for number, root in enumerate(roots):
        counts = Counter(_host(cpu, number) for cpu in root.findall("cpu") for _ in cpu.iter("gpu"))
        found |= {host: max(count, found.get(host, 0)) for host, count in counts.items()}
    return found


def _require_joined(roots: Sequence[Element], path: str) -> None:
    """Refuse one dump of several hosts of which one has no NVLink: NCCL writes none, as it joins only hosts that a switch joins."""
    linked: dict[str, bool] = {}
    for number, root in enumerate(roots):
        for cpu in root.findall("cpu"):
            if cpu.find(".//gpu") is not None:
                host = _host(cpu, number)
                linked[host] = linked.get(host, False) or cpu.find(".//nvlink") is not None
    apart = next((host for host, has in linked.items() if not has), None)
    if len(linked) > 1 and apart is not None:
        raise InputError(
            f"host {apart} has no NVLink, so that only NICs join it to the other hosts; dump the topology of each host in a job on it "
            "alone, and import those files together",
            path=path,
        )


def _require_dump(root: Element, path: str) -> None:
    """Refuse what NCCL reads and does not write: PCIe devices of GPUs, without their NVLinks and the rates of NICs."""
    if root.find(".//gpu") is None and any(pci.get("class", "").startswith("0x03") for pci in root.iter("pci")):
        name = name_of_file(Path(path)).lower()
        shipped = next(
            (f", or use the shipped {one.name}" for one in list_topologies() if name.startswith(one.name)), ""
        )
        raise InputError(
            "is a file that NCCL reads (NCCL_TOPO_FILE): NVLinks and rates of NICs are not in it; import what NCCL writes, with "
            f"NCCL_TOPO_DUMP_FILE=dump.xml beside NCCL_TOPO_FILE in a job on all GPUs of the machine{shipped}",
            path=path,
        )


def read_graph_dump(root: Element, path: str) -> Box:
    """Server of a graph dump: links that its channels use, with the rates that the search gave them.

    Links that no channel uses are not in it. Of several graphs that use a link the one with the highest rate counts. What joins
    the GPUs is the worst ``typeintra`` of graphs with channels, NVLink up to a path over one other GPU (``NVB``), as for LL128; so
    it is with ``typeinter`` and NICs, up to several PCIe switches (``PXB``).

    Parameters
    ----------
    root
        The element ``graphs``.
    path
        File name for error messages.

    Raises
    ------
    InputError
        If there is no channel, or an attribute is wrong.
    """
    reader = _DumpAttributes(path)
    rates: dict[tuple[str, str], float] = {}
    net_rates: dict[str, float] = {}
    beside: dict[str, dict[str, None]] = {}
    media, near = [], True
    for graph in root.iter("graph"):
        if any(len(channel.findall("gpu")) > 1 for channel in graph.iter("channel")):
            media.append(_medium(graph.get("typeintra", "")))
        graph_rates: dict[tuple[str, str], float] = {}
        graph_nets: dict[str, float] = {}
        ring = reader.text(graph, "id") == "0"
        for channel in graph.iter("channel"):
            stops = [f"{item.tag}-{reader.text(item, 'dev')}" for item in channel if item.tag in ("gpu", "net")]
            gpus = [stop for stop in stops if stop.startswith("gpu")]
            nets = [stop for stop in stops if stop.startswith("net")]
            pairs = list(pairwise(gpus))
            pairs += [(gpus[-1], gpus[0])] if ring and not nets and len(gpus) > 1 else []
            pairs = list(dict.fromkeys(pairs if ring else pairs + [(b, a) for a, b in pairs]))
            for pair in pairs:
                graph_rates[pair] = graph_rates.get(pair, 0.0) + reader.rate(graph, "speedintra")
            near = near and (not nets or graph.get("typeinter") in _NEAR_PATHS)
            for net in dict.fromkeys(nets):
                graph_nets[net] = graph_nets.get(net, 0.0) + reader.rate(graph, "speedinter")
                beside.setdefault(net, {}).update(dict.fromkeys([gpus[0], gpus[-1]] if gpus else []))
            for gpu in gpus:
                beside.setdefault(gpu, {})
        rates = {pair: max(rates.get(pair, 0.0), graph_rates.get(pair, 0.0)) for pair in {**rates, **graph_rates}}
        net_rates = {n: max(net_rates.get(n, 0.0), graph_nets.get(n, 0.0)) for n in {**net_rates, **graph_nets}}
    box = _graph_box(rates, net_rates, beside, path)
    box.nets = [replace(net, gpudirect=near) for net in box.nets]
    box.inside = max(media, key=list(Medium).index, default=Medium.UNKNOWN)
    return box


def _medium(path_type: str) -> Medium:
    """Medium that NCCL's type of the widest path between the GPUs of a graph stands for."""
    if path_type in _NVLINK_PATHS:
        return Medium.NVLINK
    return Medium.PCIE if path_type in _PCIE_PATHS else Medium.UNKNOWN


def _graph_box(
    rates: dict[tuple[str, str], float], net_rates: dict[str, float], beside: dict[str, dict[str, None]], path: str
) -> Box:
    box = Box()
    box.gpus = sorted((name for name in beside if name.startswith("gpu")), key=lambda name: (len(name), name))
    if not box.gpus:
        raise InputError("has no channel with GPUs; dump the graphs again", path=path, field="graph")
    for gpu in box.gpus:
        box.add(gpu, DeviceKind.GPU)
    box.gpu_links = [GpuLink(src, dst, gbps) for (src, dst), gbps in rates.items() if src != dst]
    for net, gbps in net_rates.items():
        box.add(net, DeviceKind.NIC)
        box.nets.append(NetPort(net, gbps))
        for gpu in beside[net]:
            # The dump does not say what lies between; nothing that is slower than the port.
            box.wire(gpu, net, _VIRTUAL_GBPS, f"{gpu}-{net}")
    return box


class _DumpAttributes:
    """Attributes of elements, with errors that name the element."""

    def __init__(self, path: str) -> None:
        self.path = path

    def text(self, element: Element, name: str) -> str:
        value = element.get(name)
        if value is None:
            self.fail(element, name, "is missing; dump the topology again")
        return value

    def number(self, element: Element, name: str, default: float | None = None) -> float:
        text = element.get(name)
        if text is None and default is not None:
            return default
        try:
            value = float(int(text, 16)) if text and text.lower().startswith("0x") else float(text or "")
        except ValueError:
            value = -1.0
        if not 0 <= value <= _MOST_GBPS * _MBITS_PER_GBPS:
            self.fail(element, name, f"found {(text or 'nothing')[:40]!r}, a number of at least 0 is needed")
        return value

    def rate(self, element: Element, name: str) -> float:
        gbps = self.number(element, name)
        if not 0 < gbps <= _MOST_GBPS:
            self.fail(element, name, f"found {gbps:g} GB/s, a rate above 0 is needed")
        return gbps

    def fail(self, element: Element, name: str, what: str) -> NoReturn:
        which = next((element.get(key) for key in ("busid", "id", "numaid", "dev", "target") if element.get(key)), None)
        place = f"{element.tag} {which}" if which else element.tag
        raise InputError(what, path=self.path, field=f"{place}.{name}")


class _TopologyDump(_DumpAttributes):
    """Walks dumps once, collecting devices and wires, and GPU links at the end, when all GPUs are known.

    Devices are named by their bus, and where there are several hosts by the host too: bus numbers repeat on each.
    """

    def __init__(self, several_hosts: bool) -> None:
        super().__init__("")
        self.box = Box()
        self._several = several_hosts
        self._hosts: dict[str, str] = {}  # prefix of the names of a host's devices
        self._seen: set[str] = set()  # hosts of dumps before this one
        self._prefix = ""
        self._gpus: list[_FoundGpu] = []
        self._cpus: dict[str, list[str]] = {}  # of each host
        self._guids: set[tuple[str, str, str]] = set()
        self._local: list[tuple[Element, str, str]] = []  # pcilink, its device, prefix
        self._parts: dict[str, list[str]] = {}  # of devices that are cut up into several GPUs

    def read(self, roots: Sequence[Element], paths: Sequence[str]) -> Box:
        """Server of the elements ``system``."""
        for number, (root, path) in enumerate(zip(roots, paths, strict=True)):
            self.path = path
            self._read_one(root, number)
        self._join_local()
        ranks = Counter(found.rank for found in self._gpus)
        repeated = max(ranks.values(), default=1) > 1
        self._gpus.sort(key=lambda found: (found.dump if repeated else 0, found.rank))
        self.box.gpus = [found.name for found in self._gpus]
        for found in self._gpus:
            self.path = found.path
            self._gpu_links(found)
        models = {self._model(found.element) for found in self._gpus}
        self.box.model = models.pop() if len(models) == 1 else ""
        if any(found.element.get("gcn") for found in self._gpus):
            # RCCL itself uses LL128 between nodes of MI200 alone (``graph/tuning.cc``).
            self.box.nets = [replace(net, gpudirect=False) for net in self.box.nets]
        return self.box

    def _read_one(self, root: Element, number: int) -> None:
        self.text(root, "version")
        here = {_host(cpu, number) for cpu in root.findall("cpu")}
        rates: dict[str, list[float]] = {}
        for cpu in root.findall("cpu"):
            self.text(cpu, "numaid")
            host = _host(cpu, number)
            self._prefix = self._hosts.setdefault(host, f"host{len(self._hosts)}-" if self._several else "")
            if host in self._seen:
                continue  # another rank of the same job wrote the same host
            name = f"cpu{sum(map(len, self._cpus.values()))}"
            self._cpus.setdefault(host, []).append(name)
            self._add(cpu, name, DeviceKind.CPU)
            model = int(self.number(cpu, "modelid", 0.0))
            rates.setdefault(host, []).append(socket_gbps(self.text(cpu, "arch"), cpu.get("vendor", ""), model))
            for child in cpu:
                if child.tag == "pci":
                    self._pci(child, name, _DevicePlace(name, number))
                elif child.tag == "nic":
                    self._floating_nic(child, name)
        for host, gbps in rates.items():
            self.box.join_cpus(self._cpus[host], min(gbps))
        for nic in root.findall("nic"):
            self._floating_nic(nic, next((cpus[0] for host, cpus in self._cpus.items() if host in here), None))
        self._seen |= here

    def _add(self, element: Element, name: str, kind: DeviceKind) -> None:
        try:
            self.box.add(name, kind)
        except InputError as error:
            self.fail(element, "busid", error.what)

    def _name(self, bus: str) -> str:
        return self._prefix + bus.lower()

    def _pci(self, element: Element, above: str, place: _DevicePlace) -> None:
        name = self._name(self.text(element, "busid"))
        nic = element.find("nic")
        if element.find("gpu") is not None:
            if not self._add_gpus(element, name, place):
                return
        elif nic is not None:
            self._add(element, name, DeviceKind.NIC)
            self._nets(nic, name)
        elif element.find("pci") is not None:
            self._add(element, name, DeviceKind.INNER)
        else:
            return  # NVMe, a GPU or NIC that is in no job, or a switch without anything on it
        self.box.wire(name, above, self._slot_gbps(element))
        for child in element.findall("pci"):
            self._pci(child, name, place)
        self._local += [(link, name, self._prefix) for link in element.findall("pcilink")]

    def _add_gpus(self, element: Element, name: str, place: _DevicePlace) -> bool:
        """Add the GPU of a PCIe device, or the parts of one that is cut up; False if none is in the job, which NCCL drops."""
        parts = element.findall("gpu")
        used = [gpu for gpu in parts if gpu.get("rank") is not None]
        if len(parts) > 1 and used:
            self._add(element, name, DeviceKind.INNER)
        for number, gpu in enumerate(used):
            part = name if len(parts) == 1 else f"{name}-part{number}"
            self._add(element, part, DeviceKind.GPU)
            if part != name:
                self.box.wire(part, name, _LOCAL_GBPS)
            self._parts.setdefault(name, []).append(part)
            found = _FoundGpu(part, self.number(gpu, "rank"), gpu, 1 / len(parts), place.cpu, self._prefix, place.dump,
                              self.path)  # fmt: skip
            self._gpus.append(found)
        return bool(used)

    def _slot_gbps(self, element: Element) -> float:
        if not element.get("link_speed") and not element.get("link_width"):
            return DEFAULT_PCI_GBPS
        try:
            return pci_gbps(element.get("link_speed", ""), element.get("link_width", ""))
        except InputError as error:
            self.fail(element, error.field or "link_width", error.what)

    def _floating_nic(self, element: Element, cpu: str | None) -> None:
        name = f"nic{len(self.box.nets)}"
        if cpu is None:
            self.fail(element, "nic", "belongs to no CPU; dump the topology again")
        self._add(element, name, DeviceKind.NIC)
        self._nets(element, name)
        self.box.wire(name, cpu, _VIRTUAL_GBPS)

    def _nets(self, element: Element, device: str) -> None:
        for net in element.findall("net"):
            if net.get("dev") is None:
                continue
            guid = self._prefix, net.get("guid", ""), net.get("port", "")
            if guid[1] not in ("", "0x0", "0") and guid in self._guids:
                continue  # the same port under another name
            self._guids.add(guid)
            speed = self.number(net, "speed", 0.0) if not net.get("speed", "").startswith("-") else 0.0
            latency_us = self.number(net, "latency", 0.0)
            gpudirect = net.get("gdr") == "1" and not net.get("name", "").startswith(_EFA)
            gbps = speed / _MBITS_PER_GBPS or DEFAULT_NET_GBPS
            self.box.nets.append(NetPort(device, gbps, latency_us, gpudirect))

    def _join_local(self) -> None:
        """Join switches of one card; each of the two may name the other."""
        joined: set[frozenset[str]] = set()
        for link, name, prefix in self._local:
            other = prefix + self.text(link, "target").lower()
            if other != name and other in self.box.kinds and frozenset((name, other)) not in joined:
                joined.add(frozenset((name, other)))
                self.box.wire(name, other, _LOCAL_GBPS, f"pcilink{len(joined)}")

    def _gpu_links(self, found: _FoundGpu) -> None:
        gpu, name = found.element, found.name
        wire_name = name.replace(":", "-").replace(".", "-")
        for link in _links_of(gpu):
            one = xgmi_gbps(gpu.get("gcn", "")) if link.tag == "xgmi" else nvlink_gbps(int(self.number(gpu, "sm")))
            gbps = self.number(link, "count") * one * found.share
            kind, target = self._end_of(link, found)
            ends = self._parts.get(target, [target])
            if gbps == 0 or name in ends:
                continue
            if kind == _CPU:
                self.box.wire(name, found.cpu, gbps, f"nvlink-{wire_name}")
            elif kind == _NVSWITCH:
                self.box.switched_gbps[name] = self.box.switched_gbps.get(name, 0.0) + gbps
            else:
                self.box.gpu_links += [GpuLink(name, end, gbps / len(ends)) for end in ends]
        for link in gpu.findall("c2c"):
            gbps = self.number(link, "bw") * self.number(link, "count") / 1000 * found.share
            if gbps > 0:
                self.box.wire(name, found.cpu, gbps, f"c2c-{wire_name}")

    def _end_of(self, link: Element, found: _FoundGpu) -> tuple[str, str]:
        """Class of the device at the other end of a GPU link, and its name; without a class, what the target is."""
        target = found.prefix + link.get("target", "").lower()
        kind = link.get("tclass", "")
        if not kind:
            known = target in self.box.kinds
            kind = "" if known else _NVSWITCH if _FABRIC.match(link.get("target", "").lower()) else "absent"
        if kind not in (_CPU, _NVSWITCH) and not link.get("target"):
            self.text(link, "target")
        return kind, target

    def _model(self, gpu: Element) -> str:
        return model_of_architecture(int(self.number(gpu, "sm", 0.0)), gpu.get("gcn", ""))


@dataclass(frozen=True, slots=True)
class _DevicePlace:
    """Place of a device: its CPU, and the number of the dump."""

    cpu: str
    dump: int


@dataclass(frozen=True, slots=True)
class _FoundGpu:
    """A GPU, or a part of one.

    Attributes
    ----------
    name, rank
        Of the device and in the job.
    element
        The element ``gpu``.
    share
        Part of the device's links that it has.
    cpu, prefix, dump, path
        Its CPU, the prefix of its host's devices, number and name of the dump.
    """

    name: str
    rank: float
    element: Element
    share: float
    cpu: str
    prefix: str
    dump: int
    path: str


def _links_of(gpu: Element) -> Iterator[Element]:
    for tag in ("nvlink", "xgmi"):
        yield from gpu.findall(tag)
