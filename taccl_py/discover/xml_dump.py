"""Topology dumps of NCCL and RCCL (``NCCL_TOPO_DUMP_FILE``), and the links of their graph dumps (``NCCL_GRAPH_DUMP_FILE``).

Element and attribute meanings are those of NCCL 2.30.7's ``graph/topo.cc`` and ``graph/xml.cc``; RCCL writes ``xgmi`` where
NCCL writes ``nvlink``. A dump of several hosts that NVLink joins is one node here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NoReturn
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from taccl_py.discover.box import Box, DeviceKind, GpuLink, NetPort
from taccl_py.discover.rates import (
    DEFAULT_NET_GBPS,
    DEFAULT_PCI_GBPS,
    nvlink_gbps,
    pci_gbps,
    socket_gbps,
    xgmi_gbps,
)
from taccl_py.errors import InputError

_NVSWITCH, _CPU = "0x068000", "0x068001"
_MBITS_PER_GBPS = 8000
_VIRTUAL_GBPS = 5000.0  # a NIC without a place on the PCIe bus
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


def read_topology_dump(root: Element, path: str) -> Box:
    """Server of a topology dump.

    Parameters
    ----------
    root
        The element ``system``.
    path
        File name for error messages.

    Raises
    ------
    InputError
        If an element or an attribute is wrong.
    """
    return _TopologyDump(path).read(root)


def read_graph_dump(root: Element, path: str) -> Box:
    """What a graph dump says of the server: links that its channels use, with the rates that the search gave them.

    Links that no channel uses are not in it. Of several graphs that use a link the one with the highest rate counts.

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
    reader = _Attributes(path)
    rates: dict[tuple[str, str], float] = {}
    net_rates: dict[str, float] = {}
    beside: dict[str, dict[str, None]] = {}
    for graph in root.iter("graph"):
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
            for net in dict.fromkeys(nets):
                graph_nets[net] = graph_nets.get(net, 0.0) + reader.rate(graph, "speedinter")
                beside.setdefault(net, {}).update(dict.fromkeys([gpus[0], gpus[-1]] if gpus else []))
            for gpu in gpus:
                beside.setdefault(gpu, {})
        rates = {pair: max(rates.get(pair, 0.0), graph_rates.get(pair, 0.0)) for pair in {**rates, **graph_rates}}
        net_rates = {n: max(net_rates.get(n, 0.0), graph_nets.get(n, 0.0)) for n in {**net_rates, **graph_nets}}
    return _graph_box(rates, net_rates, beside, path)


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


class _Attributes:
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


class _TopologyDump(_Attributes):
    """Walks a dump once, collecting devices and wires, and GPU links at the end, when all GPUs are known."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.box = Box()
        self._gpus: list[tuple[float, str, Element]] = []  # rank, bus, element
        self._cpus: list[str] = []
        self._cpu_of: dict[str, str] = {}
        self._guids: set[tuple[str, str]] = set()

    def read(self, root: Element) -> Box:
        """Server of the element ``system``."""
        self.text(root, "version")
        sockets = []
        for number, cpu in enumerate(root.findall("cpu")):
            self.text(cpu, "numaid")
            name = f"cpu{number}"
            self._cpus.append(name)
            self._add(cpu, name, DeviceKind.INNER)
            sockets.append(
                socket_gbps(self.text(cpu, "arch"), cpu.get("vendor", ""), int(self.number(cpu, "modelid", 0.0)))
            )
            for child in cpu:
                self._child(child, name, name)
        for nic in root.findall("nic"):
            self._floating_nic(nic, self._cpus[0] if self._cpus else None)
        if sockets:
            self.box.join_cpus(self._cpus, min(sockets))
        self._gpus.sort(key=lambda found: found[0])
        self.box.gpus = [bus for _, bus, _ in self._gpus]
        for _, bus, element in self._gpus:
            self._gpu_links(bus, element)
        return self.box

    def _add(self, element: Element, name: str, kind: DeviceKind) -> None:
        try:
            self.box.add(name, kind)
        except InputError as error:
            self.fail(element, "busid", error.what)

    def _child(self, element: Element, above: str, cpu: str) -> None:
        if element.tag == "pci":
            self._pci(element, above, cpu)
        elif element.tag == "nic":
            self._floating_nic(element, cpu)

    def _pci(self, element: Element, above: str, cpu: str) -> None:
        bus, kind = self.text(element, "busid").lower(), self.text(element, "class")
        gpu = element.find("gpu")
        nic = element.find("nic")
        if gpu is not None or (kind.startswith("0x03") and element.find("pci") is None):
            if gpu is not None and gpu.get("rank") is None:
                return  # NCCL drops a GPU that is in no job
            rank = len(self._gpus) if gpu is None else self.number(gpu, "rank")
            self._add(element, bus, DeviceKind.GPU)
            self._gpus.append((rank, bus, element if gpu is None else gpu))
            self._cpu_of[bus] = cpu
        elif nic is not None or (kind.startswith("0x02") and element.find("pci") is None):
            self._add(element, bus, DeviceKind.NIC)
            self._nets(element if nic is None else nic, bus, stated=nic is not None)
        elif element.find("pci") is not None:
            self._add(element, bus, DeviceKind.INNER)
        else:
            return  # NVMe, or a switch without anything on it
        self.box.wire(bus, above, self._slot_gbps(element))
        for child in element.findall("pci"):
            self._pci(child, bus, cpu)

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
        self._nets(element, name, stated=True)
        self.box.wire(name, cpu, _VIRTUAL_GBPS)

    def _nets(self, element: Element, device: str, *, stated: bool) -> None:
        nets = element.findall("net") if stated else [element]
        for net in nets:
            if stated and net.get("dev") is None:
                continue
            guid = net.get("guid", ""), net.get("port", "")
            if guid[0] not in ("", "0x0", "0") and guid in self._guids:
                continue  # the same port under another name
            self._guids.add(guid)
            speed = self.number(net, "speed", 0.0) if not net.get("speed", "").startswith("-") else 0.0
            latency_us = self.number(net, "latency", 0.0)
            self.box.nets.append(NetPort(device, speed / _MBITS_PER_GBPS or DEFAULT_NET_GBPS, latency_us))

    def _gpu_links(self, bus: str, gpu: Element) -> None:
        for link in _links_of(gpu):
            count, kind = self.number(link, "count"), self.text(link, "tclass")
            one = xgmi_gbps(gpu.get("gcn", "")) if link.tag == "xgmi" else nvlink_gbps(int(self.number(gpu, "sm")))
            if count == 0:
                continue
            if kind == _CPU:
                self.box.wire(bus, self._cpu_of[bus], count * one, f"nvlink-{bus.replace(':', '-').replace('.', '-')}")
            elif kind == _NVSWITCH:
                self.box.switched_gbps[bus] = self.box.switched_gbps.get(bus, 0.0) + count * one
            else:
                target = self.text(link, "target").lower()
                self.box.gpu_links.append(GpuLink(bus, target, count * one))
        for link in gpu.findall("c2c"):
            gbps = self.number(link, "bw") * self.number(link, "count") / 1000
            if gbps > 0:
                self.box.wire(bus, self._cpu_of[bus], gbps, f"c2c-{bus.replace(':', '-').replace('.', '-')}")


def _links_of(gpu: Element) -> Iterator[Element]:
    for tag in ("nvlink", "xgmi"):
        yield from gpu.findall(tag)
