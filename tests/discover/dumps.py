"""Small made-up dumps in the formats of other tools; wiring and rates are those of well-known machines."""

AMD_CPU = 'arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1"'
INTEL_CPU = 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85"'


def system(*cpus, version=1):
    return f'<system version="{version}">\n' + "\n".join(cpus) + "\n</system>\n"


def cpu(number, *children, kind=AMD_CPU):
    return f'<cpu numaid="{number}" affinity="ff" {kind}>\n' + "\n".join(children) + "\n</cpu>"


def pci(bus, *children, kind="0x060400", speed="16.0 GT/s PCIe", width=16):
    inside = "\n".join(children)
    return f'<pci busid="{bus}" class="{kind}" link_speed="{speed}" link_width="{width}">\n{inside}\n</pci>'


def gpu(bus, rank, *links, sm=80, speed="16.0 GT/s PCIe", more=""):
    inside = "".join(links)
    element = f'<gpu dev="{rank}" sm="{sm}" rank="{rank}" gdr="1" {more}>{inside}</gpu>'
    return pci(bus, element, kind="0x030200", speed=speed)


def nic(bus, number, mbits, speed="16.0 GT/s PCIe"):
    net = f'<net name="mlx5_{number}" dev="{number}" latency="0.0" speed="{mbits}" port="1" guid="0x{number + 1:x}" maxconn="1" gdr="1"/>'
    return pci(bus, f"<nic>{net}</nic>", kind="0x020700", speed=speed)


def nvlink(target, count, kind="0x030200"):
    return f'<nvlink target="{target}" count="{count}" tclass="{kind}"/>'


def gpu_bus(rank):
    return f"0000:{0x10 + rank:02x}:00.0"


def nvswitch_node():
    """8 A100 on NVSwitch; two GPUs and two NICs of 200 Gb/s on each of four PCIe switches, two CPUs."""
    switches = []
    for number in range(4):
        here = [
            gpu(gpu_bus(rank), rank, nvlink("ffff:ff:ff.f", 12, "0x068000")) for rank in (2 * number, 2 * number + 1)
        ]
        here += [nic(f"0000:{0x40 + n:02x}:00.0", n, 200000) for n in (2 * number, 2 * number + 1)]
        switches.append(pci(f"0000:0{number}:00.0", *here))
    return system(cpu(0, *switches[:2]), cpu(1, *switches[2:]))


def nvlink_pairs():
    """4 A100 in two bridged pairs, one pair for each CPU; one NIC, on the first CPU."""

    def one(rank):
        return gpu(gpu_bus(rank), rank, nvlink(gpu_bus(rank ^ 1), 12))

    return system(cpu(0, one(0), one(1), nic("0000:40:00.0", 0, 100000)), cpu(1, one(2), one(3)))


def pcie_only(*, vendor=INTEL_CPU):
    """4 GPUs of Gen3 slots, two on one PCIe switch of the first CPU, two on one of the second; no NIC."""

    def one(rank):
        return gpu(gpu_bus(rank), rank, sm=75, speed="8.0 GT/s PCIe")

    switches = [pci(f"0000:0{n}:00.0", one(2 * n), one(2 * n + 1), speed="8.0 GT/s PCIe") for n in (0, 1)]
    return system(cpu(0, switches[0], kind=vendor), cpu(1, switches[1], kind=vendor))


def rccl_mi300x():
    """8 MI300X, each joined to each other by one xGMI link; a NIC for each."""
    parts = []
    for rank in range(8):
        links = [
            f'<xgmi target="{gpu_bus(other)}" count="1" tclass="0x038000"/>' for other in range(8) if other != rank
        ]
        here = [
            gpu(gpu_bus(rank), rank, *links, sm=94, speed="32.0 GT/s PCIe", more='gcn="gfx942" arch="37912"'),
            nic(f"0000:{0x40 + rank:02x}:00.0", rank, 400000, speed="32.0 GT/s PCIe"),
        ]
        parts.append(pci(f"0000:0{rank}:00.0", *here, speed="32.0 GT/s PCIe"))
    return system(cpu(0, *parts[:4]), cpu(1, *parts[4:]), version=2)


def rccl_mi200():
    """4 GPUs of the MI200 kind: a ring in which every other side has two links; no NIC."""

    def one(rank):
        links = [
            f'<xgmi target="{gpu_bus(rank ^ 1)}" count="2" tclass="0x038000"/>',
            f'<xgmi target="{gpu_bus(3 - rank)}" count="1" tclass="0x038000"/>',
        ]
        return gpu(gpu_bus(rank), rank, *links, sm=90, more='gcn="910" arch="38911"')

    return system(cpu(0, one(0), one(1)), cpu(1, one(2), one(3)), version=2)


def graph_dump(joined='typeintra="NVL"'):
    """Two channels of a ring over 4 GPUs in opposite directions, 20 GB/s each."""
    rows = [[0, 1, 2, 3], [3, 2, 1, 0]]
    channels = "".join("<channel>" + "".join(f'<gpu dev="{g}"/>' for g in row) + "</channel>" for row in rows)
    return (
        '<graphs version="1"><graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="20" speedinter="20" '
        f'latencyinter="0" {joined} typeinter="PIX" samechannels="0">{channels}</graph></graphs>'
    )


GRACE = 'arch="arm64"'


def tray(host, first_rank=0, *, gpus=4, links=18, without=(), sm=100, kind=GRACE, first_net=0):
    """CPUs of a Grace tray of a rack: each GPU on a root port with a NIC of 400 Gb/s; bus numbers are the same on every host."""
    cpus = []
    for number in range(gpus):
        rank = first_rank + number
        up = [] if rank in without else [nvlink("fffffff:ff:ff.0", links, "0x068000")]
        here = [
            gpu(f"00{number:02x}:06:00.0", rank, *up, '<c2c bw="44712" count="5"/>', sm=sm, speed="32.0 GT/s PCIe"),
            nic(f"00{number:02x}:03:00.0", first_net + number, 400000, speed="32.0 GT/s PCIe"),
        ]
        port = pci(f"00{number:02x}:00:00.0", *here, speed="32.0 GT/s PCIe")
        cpus.append(cpu(number, port, kind=f'{kind} host_hash="{host}"' if host else kind))
    return cpus


def cut_up_gpus(parts=2, links=36):
    """Two GPUs of one NVLink switch, each cut up into parts that are ranks of their own."""
    devices = []
    for device in range(2):
        inside = "".join(
            f'<gpu dev="{device}" sm="100" mlopart="{part}" rank="{device * parts + part}" gdr="1">'
            f'{nvlink("fffffff:ff:ff.0", links, "0x068000")}<c2c bw="56376" count="7"/></gpu>'
            for part in range(parts)
        )
        devices.append(pci(f"000{device}:81:00.0", inside, kind="0x030200", speed="64.0 GT/s PCIe", width=2))
    return system(cpu(0, *devices, kind=GRACE), version=2)


def topo_file(arch='arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"', nics=True):
    """What clouds ship for NCCL to read: PCIe devices without a word on NVLink and the rates of NICs."""
    cpus = []
    for number in range(2):
        devices = [pci(f"000{number}:00:00.0", kind="0x030200", speed="32.0 GT/s PCIe")]
        devices += [pci(f"010{number}:00:00.0", kind="0x020700", speed="32.0 GT/s PCIe")] if nics else []
        cpus.append(cpu(number, pci(f"ffff:ff:0{number}.0", *devices, speed="32.0 GT/s PCIe"), kind=arch))
    return system(*cpus)


def near_and_far_nics(near_mbits, far_mbits):
    """One GPU two PCIe switches away from a NIC, and a NIC at the root complex."""
    deep = pci("0000:03:00.0", nic("0000:40:00.0", 0, near_mbits, speed="32.0 GT/s PCIe"), speed="32.0 GT/s PCIe")
    above = pci("0000:02:00.0", deep, pci("0000:04:00.0", gpu("0000:10:00.0", 0, sm=90, speed="32.0 GT/s PCIe"),
                speed="32.0 GT/s PCIe"), speed="32.0 GT/s PCIe")  # fmt: skip
    return system(cpu(0, above, nic("0000:41:00.0", 1, far_mbits)))


def nvidia_matrix(names, cell, affinity):
    """What ``nvidia-smi topo -m`` prints, in its columns, colours and legend."""
    head = "\t\x1b[4m" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"
    rows = []
    for a in names:
        cells = [" X " if a == b else cell(a, b) for b in names]
        rows.append("\t".join([a, *cells, *(affinity(a) if a.startswith("GPU") else ())]))
    return "\n".join([head, *rows, "", "Legend:", "", "  X    = Self", "  NV#  = Connection traversing NVLinks", ""])


def _number(name):
    return int("".join(filter(str.isdigit, name.removeprefix("mlx5_"))))


def _halves(size):
    return lambda name: ("0-19,40-59", "0", "N/A") if _number(name) < size // 2 else ("20-39,60-79", "1", "N/A")


def dgx1_matrix():
    """8 V100 in a hybrid cube mesh; every pair of GPUs on one PCIe switch with a NIC."""
    double = {(0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7)}
    single = {(0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6)}

    def cell(a, b):
        i, j = sorted((_number(a), _number(b)))
        if a.startswith("GPU") and b.startswith("GPU"):
            return "NV2" if (i, j) in double else "NV1" if (i, j) in single else "NODE" if i // 4 == j // 4 else "SYS"
        place = {name: _number(name) // 2 if name.startswith("GPU") else _number(name) for name in (a, b)}
        return "PIX" if place[a] == place[b] else "NODE" if place[a] // 2 == place[b] // 2 else "SYS"

    return nvidia_matrix([*(f"GPU{i}" for i in range(8)), *(f"mlx5_{i}" for i in range(4))], cell, _halves(8))


def switched_matrix(size, links, nics, classes=("PIX", "NODE")):
    """GPUs on NVSwitch; the NICs are dealt out in order, `classes` say what lies between near and other devices."""

    def place(name):
        return _number(name) * nics // size if name.startswith("GPU") else _number(name)

    def cell(a, b):
        if a.startswith("GPU") and b.startswith("GPU"):
            return f"NV{links}"
        near = place(a) == place(b)
        return classes[0] if near else classes[1] if place(a) * 2 // nics == place(b) * 2 // nics else "SYS"

    names = [*(f"GPU{i}" for i in range(size)), *(f"NIC{i}" for i in range(nics))]
    return nvidia_matrix(names, cell, _halves(size))


def pcie_box_matrix():
    """4 PCIe cards, two on each CPU, and a NIC on the second."""

    def cell(a, b):
        home = {name: 1 if name == "NIC0" else _number(name) // 2 for name in (a, b)}
        return "PHB" if home[a] == home[b] else "SYS"

    return nvidia_matrix(["GPU0", "GPU1", "GPU2", "GPU3", "NIC0"], cell, _halves(4))


def amd_tables(names, kind, titles, hops=lambda *_: "1", selves=("0", "0")):
    """Tables of link types and hops as rocm-smi and amd-smi print them."""
    texts = []
    for title, cell, own in zip(titles, (hops, kind), selves, strict=True):
        rows = [" ".join([a, *(own if a == b else cell(a, b) for b in names)]) for a in names]
        texts.append("\n".join([title, "   ".join(["", *names]), *rows, ""]))
    return "\n".join(texts)


def rocm_smi():
    """4 GPUs in two pairs of xGMI, PCIe between them."""
    names = [f"GPU{i}" for i in range(4)]
    text = amd_tables(
        names,
        lambda a, b: "XGMI" if _number(a) // 2 == _number(b) // 2 else "PCIE",
        ("====== Hops between two GPUs ======", "====== Link Type between two GPUs ======"),
        lambda a, b: "1" if _number(a) // 2 == _number(b) // 2 else "2",
    )
    numa = "\n".join(f"GPU[{i}]\t\t: (Topology) Numa Node: {i // 2}" for i in range(4))
    return f"======= ROCm System Management Interface =======\n{text}\n====== Numa Nodes ======\n{numa}\n"


def amd_smi():
    """4 GPUs, all joined by xGMI that reports 50000 MB/s."""
    names = [f"0000:{bus}:00.0" for bus in ("0c", "22", "38", "5c")]
    text = amd_tables(names, lambda *_: "XGMI", ("HOPS TABLE:", "LINK TYPE TABLE:"), selves=("0", "SELF"))
    rows = [" ".join([a, *("N/A" if a == b else "50000-50000" for b in names)]) for a in names]
    return text + "\nNUMA BW TABLE:\n  " + " ".join(names) + "\n" + "\n".join(rows) + "\n"


def amd_table(title, names, cell, own="0"):
    """One table of ``rocm-smi --showtopo`` or ``amd-smi topology``."""
    rows = [" ".join([a, *(own if a == b else cell(a, b) for b in names)]) for a in names]
    return "\n".join([title, "   ".join(["", *names]), *rows, ""])


MI250X_LINKS = {(0, 1), (0, 2), (0, 6), (1, 3), (1, 5), (2, 3), (2, 4), (3, 7), (4, 5), (4, 6), (5, 7), (6, 7)}


def rocm_smi_weights(size=8, links=MI250X_LINKS):
    """GPUs of which every two say XGMI and 1 hop, and only the weight says how far they are."""
    names = [f"GPU{i}" for i in range(size)]

    def weight(a, b):
        return "15" if tuple(sorted((_number(a), _number(b)))) in links else "30"

    return "\n".join([
        "======= ROCm System Management Interface =======",
        amd_table("===== Weight between two GPUs =====", names, weight),
        amd_table("===== Hops between two GPUs =====", names, lambda *_: "1"),
        amd_table("===== Link Type between two GPUs =====", names, lambda *_: "XGMI"),
        *(f"GPU[{i}]\t\t: (Topology) Numa Node: {i // 2}" for i in range(size)),
    ])  # fmt: skip


def amd_smi_rates(size=8, links=MI250X_LINKS, rate="50000-50000", far="0-0"):
    """The same machine in the words of amd-smi, whose table of rates says which two are joined."""
    names = [f"0000:{0x10 + i:02x}:00.0" for i in range(size)]

    def stated(a, b):
        return rate if tuple(sorted((names.index(a), names.index(b)))) in links else far

    return "\n".join([
        amd_table("HOPS TABLE:", names, lambda *_: "1"),
        amd_table("LINK TYPE TABLE:", names, lambda *_: "XGMI", "SELF"),
        amd_table("NUMA BW TABLE:", names, stated, "N/A"),
    ])  # fmt: skip


def amd_full(size, numa):
    """GPUs of which every two are joined by xGMI; their NUMA nodes."""
    names = [f"GPU{i}" for i in range(size)]
    tables = [amd_table(f"===== {title} between two GPUs =====", names, lambda *_, cell=cell: cell)
              for title, cell in (("Weight", "15"), ("Hops", "1"), ("Link Type", "XGMI"))]  # fmt: skip
    return "\n".join([*tables, *(f"GPU[{i}]\t\t: (Topology) Numa Node: {numa(i)}" for i in range(size))])


def nvlink_matrix(counts):
    """GPUs of which every two say the same NVLinks, those of the one that has fewer."""
    names = [f"GPU{i}" for i in range(len(counts))]
    return nvidia_matrix(
        names, lambda a, b: f"NV{min(counts[_number(a)], counts[_number(b)])}", lambda _: ("0-95", "0", "N/A")
    )


def networkx_leaf_spine():
    """4 ranks, two on each of two leaf switches, one spine; 10 GB/s to a rank, 10 GB/s from leaf to spine."""
    nodes = [{"id": f"g{i}", "node": i // 2} for i in range(4)]
    nodes += [{"id": name, "type": "switch"} for name in ("leaf0", "leaf1", "spine")]
    edges = [{"source": f"g{i}", "target": f"leaf{i // 2}"} for i in range(4)]
    edges += [{"source": f"leaf{i}", "target": "spine"} for i in range(2)]
    costs = {"alpha_us": 0.5, "bandwidth_gbps": 10}
    return {
        "directed": False, "multigraph": False, "graph": {}, "nodes": nodes,
        "links": [edge | costs for edge in edges],
    }  # fmt: skip


def teccl_matrices():
    """A star: 3 ranks around the switch with index 3, 100 GB/s and 0.5 us for each hop."""
    ends = [(i, 3) for i in range(3)] + [(3, i) for i in range(3)]
    capacity = [[100.0 if (i, j) in ends else 0 for j in range(4)] for i in range(4)]
    alpha = [[5e-7 if (i, j) in ends else -1 for j in range(4)] for i in range(4)]
    return {"chunk_size": 1.0, "capacity": capacity, "alpha": alpha, "switch_indices": [3]}
