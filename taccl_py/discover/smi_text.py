"""Matrices that ``nvidia-smi topo -m``, ``rocm-smi --showtopo`` and ``amd-smi topology`` print.

They name what lies between two devices and no rate; rates come from `taccl_py.discover.gpus`, for the GPU that the user names
or the one that the links suggest, which is told (`Box.guess`). Between GPUs that NVLink joins the matrix is silent about PCIe: two of them are
taken to be on one PCIe switch only where both are on one with the same NIC.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from taccl_py.discover.gpus import GPU_MODELS, GpuModel
from taccl_py.discover.rates import socket_gbps
from taccl_py.discover.server import Box, DeviceKind, GpuLink, NetPort
from taccl_py.errors import InputError
from taccl_py.units import format_count

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_NVLINKS = re.compile(r"NV([0-9]{1,3})")
_PCI_CLASSES = ("PIX", "PXB", "PHB", "NODE", "SYS")
_MOST_NVLINKS = 18
_LEAST_OF_VOLTA = 3  # NVLinks between two GPUs; P100 had one, or two
_OF_OLD_DRIVERS = {"SOC": "SYS"}
_APUS = 4  # MI300A of one node
_XGMI_WEIGHT = 15  # of one hop over xGMI in the Linux driver (KFD_CRAT_XGMI_WEIGHT)
_TITLES = {
    "weight": re.compile(r"^=*\s*(Weight between two GPUs|WEIGHT TABLE:?)\s*=*$", re.I),
    "type": re.compile(r"^=*\s*(Link Type between two GPUs|LINK TYPE TABLE:?)\s*=*$", re.I),
    "hops": re.compile(r"^=*\s*(Hops between two GPUs|HOPS TABLE:?)\s*=*$", re.I),
    "rate": re.compile(r"^=*\s*(NUMA BW TABLE:?)\s*=*$", re.I),
}
_NUMA = re.compile(r"GPU\s*\[?([0-9]+)\]?\s*:\s*\(Topology\) Numa Node:[ \t]*(.*)", re.I)


def is_amd_text(text: str) -> bool:
    """True if a line is the title of a table of ``rocm-smi`` or ``amd-smi``."""
    return any(title.match(line.strip()) for line in text.splitlines() for title in _TITLES.values())


def read_nvidia_matrix(text: str, path: str, gpu: str = "") -> Box:
    """Server of ``nvidia-smi topo -m``.

    Parameters
    ----------
    text
        The output, with or without colours and legend.
    path
        File name for error messages.
    gpu
        Name in `taccl_py.discover.gpus.GPU_MODELS`, or empty for a guess by the number of NVLinks.

    Raises
    ------
    InputError
        If there is no matrix, a row is cut off, or two cells contradict each other.
    """
    matrix = _Matrix.of_nvidia(text, path)
    gpus = [name for name in matrix.names if name.startswith("GPU")]
    nics = [name for name in matrix.names if not name.startswith("GPU")]
    links = {
        (a, b): int(match.group(1))
        for a in gpus
        for b in gpus
        if a != b and (match := _NVLINKS.fullmatch(matrix.cells[a, b]))
    }
    model, guess = (GPU_MODELS[gpu], "") if gpu else _guess_nvidia(gpus, links)
    box = Box(gpus=gpus, model=model.name if gpu or links else "", guess=guess)
    for name in gpus:
        box.add(name, DeviceKind.GPU)
    for name in nics:
        box.add(name, DeviceKind.NIC)
        box.nets.append(NetPort(name, model.net_gbps))
    switched = _switched(links, model if gpu else None)
    box.switched_gbps = {name: count * model.link_gbps for name, count in switched.items()}
    if not switched:
        box.gpu_links = [GpuLink(a, b, count * model.link_gbps) for (a, b), count in links.items()]
    _add_pci(box, matrix, model)
    return box


@dataclass(frozen=True)
class _Matrix:
    """Devices, what lies between every two of them, and the CPUs that each GPU is near to (empty where not said)."""

    names: tuple[str, ...]
    cells: Mapping[tuple[str, str], str]
    near: Mapping[str, str]

    @staticmethod
    def of_nvidia(text: str, path: str) -> _Matrix:
        lines = [_ESCAPES.sub("", line).split() for line in text.splitlines()]
        head = next((i for i, row in enumerate(lines) if row[:1] == ["GPU0"] and row[1:2] != ["X"]), None)
        if head is None:
            raise InputError("holds no matrix of GPU0, GPU1, ...; save what nvidia-smi topo -m prints", path=path)
        titles = lines[head]
        names = tuple(titles[: titles.index("CPU")] if "CPU" in titles else titles)
        rows = {row[0]: row[1:] for row in lines[head + 1 :] if row and row[0] in names}
        cells: dict[tuple[str, str], str] = {}
        near: dict[str, str] = {}
        for name in names:
            row = rows.get(name, [])
            if len(row) < len(names):
                raise InputError(
                    f"found {len(row)} of {len(names)} cells; save the whole output of nvidia-smi topo -m",
                    path=path,
                    field=f"row {name}",
                )
            cells.update(
                {(name, other): _OF_OLD_DRIVERS.get(cell, cell) for other, cell in zip(names, row, strict=False)}
            )
            near[name] = row[len(names)] if len(row) > len(names) and name.startswith("GPU") else ""
        for (a, b), cell in cells.items():
            known = cell == "X" if a == b else cell in _PCI_CLASSES or _NVLINKS.fullmatch(cell)
            if not known:
                what = "X between a device and itself, else NV1, NV2, ..., PIX, PXB, PHB, NODE or SYS is needed"
                raise InputError(f"found {cell!r}; {what}", path=path, field=f"row {a}, column {b}")
            if cells[b, a] != cell:
                what = f"found {cell!r}, and row {b}, column {a} has {cells[b, a]!r}; the same is needed in both directions"
                raise InputError(what, path=path, field=f"row {a}, column {b}")
        return _Matrix(names, cells, near)


def _guess_nvidia(gpus: Sequence[str], links: Mapping[tuple[str, str], int]) -> tuple[GpuModel, str]:
    """The GPU that the most NVLinks of a pair, or of one GPU in all, suggest, and a sentence that says so."""
    if not links:
        model = GPU_MODELS["a100"]
        return model, (
            f"no NVLink is named, so PCIe is counted as that of a card of Gen4, {model.pci_gbps:g} GB/s; name the GPU with --gpu"
        )
    pair = max(links.values())
    total = max(sum(count for (a, _), count in links.items() if a == gpu) for gpu in gpus)
    used = total if total <= _MOST_NVLINKS else pair
    if pair == used == GPU_MODELS["a40"].links:
        name = "a40"  # cards of one bridge
    elif used <= GPU_MODELS["p100"].links and pair < _LEAST_OF_VOLTA:
        name = "p100"
    else:
        name = next((one for one in ("v100", "a100") if used <= GPU_MODELS[one].links), "h100")
    model = GPU_MODELS[name]
    others = [one.name for one in GPU_MODELS.values() if one.links >= used and one.link_gbps > model.link_gbps
              and not one.is_amd]  # fmt: skip
    remedy = f"if it is another ({', '.join(others)}), name it with --gpu" if others else "name another with --gpu"
    return (
        model,
        f"the GPU is a guess by its {format_count(used, 'NVLink')}: {name}, {model.link_gbps:g} GB/s a link; {remedy}",
    )


def _switched(links: Mapping[tuple[str, str], int], model: GpuModel | None) -> dict[str, int]:
    """NVLinks of each GPU to a switch, or nothing where they lead to other GPUs.

    On a switch every pair names the links of the one of the two that has fewer, and a GPU has not that many for each other.
    """
    members = list(dict.fromkeys(a for a, _ in links))
    if not links or len(links) != len(members) * (len(members) - 1):
        return {}
    counts = {gpu: max(count for (a, _), count in links.items() if a == gpu) for gpu in members}
    if any(count != min(counts[a], counts[b]) for (a, b), count in links.items()):
        return {}
    possible = model.links if model else _MOST_NVLINKS
    return counts if min(counts.values()) * (len(members) - 1) > possible else {}


def _add_pci(box: Box, matrix: _Matrix, model: GpuModel) -> None:
    """Slots, switches where several devices are behind one, uplinks, CPUs and what joins them."""
    names = matrix.names
    # PIX: one switch between them; PXB: several, whose uplinks meet before the CPU.
    inner = _components(names, [pair for pair, cell in matrix.cells.items() if cell == "PIX"])
    outer = _components(names, [pair for pair, cell in matrix.cells.items() if cell in ("PIX", "PXB")])
    together = [pair for pair, cell in matrix.cells.items() if cell in ("PIX", "PXB", "PHB", "NODE")]
    together += [
        (a, b) for a in names for b in names if matrix.near.get(a) and matrix.near.get(a) == matrix.near.get(b)
    ]
    socket = _components(names, together)
    above: dict[str, str] = {}
    for name in names:
        peers = {inner[other] for other in names if outer[other] == outer[name]}
        above_it = []
        if sum(other == inner[name] for other in inner.values()) > 1:
            above_it.append(f"switch{inner[name]}")
        if len(peers) > 1:
            above_it.append(f"bridge{outer[name]}")
        above_it.append(f"cpu{socket[name]}")
        for low, high in zip([name, *above_it], above_it, strict=False):
            above[low] = high
    for name in dict.fromkeys(above.values()):
        box.add(name, DeviceKind.CPU if name.startswith("cpu") else DeviceKind.INNER)
    for low, high in above.items():
        box.wire(low, high, model.pci_gbps)
    # The matrix does not name the CPU; Skylake and its successors are the slower of the usual ones.
    cpus = [name for name in dict.fromkeys(above.values()) if name.startswith("cpu")]
    box.join_cpus(cpus, socket_gbps("x86_64", "GenuineIntel", 0x55))


def _components(names: Sequence[str], pairs: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Number of the group of each device, counted in the order of their first members."""
    group = {name: index for index, name in enumerate(names)}
    for a, b in pairs:
        low, high = sorted((group[a], group[b]))
        group = {name: low if number == high else number for name, number in group.items()}
    number_of = {number: index for index, number in enumerate(dict.fromkeys(group.values()))}
    return {name: number_of[number] for name, number in group.items()}


def read_amd_matrix(text: str, path: str, gpu: str = "") -> Box:
    """Server of ``rocm-smi --showtopo`` or ``amd-smi topology``.

    xGMI of one hop is a direct link. The table of weights says best how many hops there are: the table of hops has 1 for xGMI
    over whatever other GPUs. Where the table of bandwidths states rates, in MB/s, these count, and pairs without one are not
    direct. xGMI of more hops is no link of its own. The other GPUs are reached through the CPU of their NUMA node.

    Parameters
    ----------
    text
        The output.
    path
        File name for error messages.
    gpu
        Name in `taccl_py.discover.gpus.GPU_MODELS`; empty for a guess by the links.

    Raises
    ------
    InputError
        If the table of link types is missing or cut off, or a NUMA node is no number.
    """
    tables = {key: _table(text, title, path) for key, title in _TITLES.items()}
    if not tables["type"]:
        raise InputError(
            "holds no table of link types; save what rocm-smi --showtopo or amd-smi topology prints", path=path
        )
    names = list(dict.fromkeys(a for a, _ in tables["type"]))
    numa = _numa_nodes(text, path)
    rates = {
        pair: int(match.group(1)) / 1000
        for pair, cell in tables["rate"].items()
        if (match := re.fullmatch(r"[0-9]+-([0-9]+)", cell)) and int(match.group(1))
    }
    direct = _direct(tables, rates, path)
    model, guess = (GPU_MODELS[gpu], "") if gpu else _guess_amd(names, direct, numa, stated=direct <= rates.keys())
    box = Box(gpus=names, model=model.name if gpu or direct else "", guess=guess)
    for name in names:
        box.add(name, DeviceKind.GPU)
    width = model.pair_links if len(direct) == len(names) * (len(names) - 1) else 1
    for a, b in sorted(direct, key=lambda pair: (names.index(pair[0]), names.index(pair[1]))):
        box.gpu_links.append(GpuLink(a, b, rates.get((a, b), width * model.link_gbps)))
    cpus = list(dict.fromkeys(f"cpu{numa.get(name, '0')}" for name in names))
    for cpu in cpus:
        box.add(cpu, DeviceKind.CPU)
    for name in names:
        box.wire(name, f"cpu{numa.get(name, '0')}", model.pci_gbps)
    box.join_cpus(cpus, socket_gbps("x86_64", "AuthenticAMD", 0))
    return box


def _numa_nodes(text: str, path: str) -> dict[str, str]:
    """NUMA node of each GPU that the text says one of; -1 is what Linux says where it knows none."""
    found = {}
    for match in _NUMA.finditer(text):
        name, number = f"GPU{match.group(1)}", match.group(2).strip()
        if not re.fullmatch(r"-1|[0-9]{1,9}", number):
            what = f"found {number[:40]!r}, a number from -1 is needed; save the whole output again"
            raise InputError(what, path=path, field=f"Numa Node of {name}")
        if number != "-1":
            found[name] = number
    return found


def _direct(
    tables: Mapping[str, Mapping[tuple[str, str], str]], rates: Mapping[tuple[str, str], float], path: str
) -> set[tuple[str, str]]:
    """Pairs that xGMI joins directly."""
    direct = set()
    stated = {pair for pair, cell in tables["type"].items() if cell == "XGMI" and pair in rates}
    for pair, cell in tables["type"].items():
        weight, hops = tables["weight"].get(pair, ""), tables["hops"].get(pair, "1")
        near = int(weight) < 2 * _XGMI_WEIGHT if weight.isdecimal() and int(weight) else hops == "1"
        if cell == "XGMI" and pair[0] != pair[1] and near and (pair in stated or not stated):
            direct.add(pair)
    for a, b in sorted(direct):
        if (b, a) not in direct:
            raise InputError(
                "is XGMI in one direction only; save the output again", path=path, field=f"row {a}, column {b}"
            )
    return direct


def _guess_amd(
    names: Sequence[str], direct: set[tuple[str, str]], numa: Mapping[str, str], *, stated: bool
) -> tuple[GpuModel, str]:
    """The GPU that its xGMI links suggest, and a sentence that says so, with its rate if the text has not `stated` those of links."""
    most = max((sum(a == name for a, _ in direct) for name in names), default=0)
    full = len(direct) == len(names) * (len(names) - 1)
    if full and most > GPU_MODELS["mi210"].links:
        name = "mi300x"
    elif full and len(names) == _APUS and len(set(numa.values())) == len(names):
        name = "mi300a"  # each is a NUMA node of its own
    else:
        name = "mi210" if full or most <= 1 else "mi250x"
    model = GPU_MODELS[name]
    links = format_count(most, "xGMI link") if most else "having no xGMI link"
    rate = ", and rates of links are those of the file" if stated and most else f", {model.link_gbps:g} GB/s a link"
    return model, f"the GPU is a guess by its {links}: {name}{rate}; if it is another, name it with --gpu"


def _table(text: str, title: re.Pattern[str], path: str) -> dict[tuple[str, str], str]:
    lines = [line.split() for line in text.splitlines()]
    start = next((i for i, line in enumerate(text.splitlines()) if title.match(line.strip())), None)
    if start is None or start + 1 >= len(lines):
        return {}
    names = lines[start + 1]
    cells: dict[tuple[str, str], str] = {}
    for place, name in enumerate(names):
        row = lines[start + 2 + place] if start + 2 + place < len(lines) else []
        if row[:1] != [name] or len(row) != len(names) + 1:
            raise InputError(
                f"found {len(row[1:])} of {len(names)} cells; save the whole output", path=path, field=f"row {name}"
            )
        cells.update({(name, other): cell for other, cell in zip(names, row[1:], strict=True)})
    return cells
