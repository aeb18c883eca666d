"""Dumps as they come from the field: kinds of input that were once read as something else without a word."""

import json
from dataclasses import replace

import pytest

from taccl_py.baselines.nccl_ranks import gpu_of
from taccl_py.baselines.nccl_tuner import GpuGeneration
from taccl_py.collective import Kind
from taccl_py.discover.importer import import_machine
from taccl_py.errors import InputError
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.lowering.program import Protocol
from taccl_py.lowering.protocol import choose_protocol
from taccl_py.pipeline.deliver import lower_and_verify
from taccl_py.pipeline.resolve import Request
from taccl_py.pipeline.search import synthesize
from taccl_py.runtimes import EXECUTOR
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Events, Options
from taccl_py.topology.files import read_template
from taccl_py.topology.model import Medium
from tests.discover import dumps

PCI_ALPHA_US = 1.0


@pytest.fixture
def imported(tmp_path):
    """Import texts, one for each file."""

    def read(*texts, stem="dump", **options):
        paths = [tmp_path / f"{stem}{number or ''}.txt" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text, encoding="utf-8")
        return import_machine(paths, **options)

    return read


def rates(template):
    """GB/s of every direct link inside a node, by (src, dst)."""
    return {(link.src, link.dst): round(1000 / link.cost.beta_us_per_mb, 3) for link in template.links}


def switch_gbps(template):
    """GB/s of the ports of every rank on the switch."""
    (switch,) = template.switches
    return {rank: round(1000 / switch.cost_of(rank).beta_us_per_mb, 3) for rank in switch.ranks}


# What joins the GPUs


@pytest.mark.parametrize(
    ("joined", "inside"),
    [
        ('typeintra="NVL"', Medium.NVLINK),
        ('typeintra="NVB"', Medium.NVLINK),
        ('typeintra="SYS"', Medium.PCIE),
        ('typeintra="PIX"', Medium.PCIE),
        ('typeintra="C2C"', Medium.PCIE),
        ('typeintra="7"', Medium.UNKNOWN),
        ("", Medium.UNKNOWN),
    ],
)
def test_a_graph_dump_says_what_joins_the_gpus(imported, joined, inside):
    node = imported(dumps.graph_dump(joined)).template
    assert node.inside is inside
    assert {link.cost.alpha_us for link in node.links} == {PCI_ALPHA_US if inside is Medium.PCIE else 0.6}


def test_of_several_graphs_the_worst_path_counts_and_graphs_without_channels_do_not(imported):
    tree = '<graph id="1" speedintra="12" speedinter="12" typeintra="PHB">{}</graph></graphs>'
    channel = '<channel><gpu dev="0"/><gpu dev="1"/></channel>'
    rings = dumps.graph_dump().removesuffix("</graphs>")
    assert imported(rings + tree.format(channel)).template.inside is Medium.PCIE
    assert imported(rings + tree.format("")).template.inside is Medium.NVLINK


@pytest.mark.parametrize("joined", ['typeintra="SYS"', ""])
def test_gpus_that_nvlink_may_not_join_get_no_ll128(imported, tmp_path, joined):
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(imported(dumps.graph_dump(joined)).to_json()))
    options = Options(limits=Limits(seconds=1.0))
    schedule = synthesize(
        Request(str(path), Kind.ALLGATHER, size_bytes=1 << 18, engine="greedy", options=options), Events()
    ).schedule
    sizes = [10.0**exponent for exponent in range(3, 9)]
    chosen = {choose_protocol(replace(schedule, chunk_bytes=size), None, EXECUTOR).protocol for size in sizes}
    assert Protocol.LL128 not in chosen


@pytest.mark.parametrize(
    ("change", "near"),
    [
        (lambda text: text, True),
        (lambda text: text.replace('maxconn="1" gdr="1"', 'maxconn="1" gdr="0"', 1), False),
        (lambda text: text.replace("mlx5_0", "rdmap16s27"), False),
        (lambda text: text.replace('<gpu dev="0"', '<gpu gcn="gfx942" dev="0"'), False),
    ],
)
def test_a_dump_says_whether_all_nics_write_into_gpus_and_are_no_efa(imported, change, near):
    text = change(dumps.nvswitch_node())
    assert imported(text).template.near_nics is near
    assert imported(text, near_nics=True).template.near_nics


def test_nics_beyond_a_cpu_are_not_near(imported):
    assert imported(dumps.near_and_far_nics(200000, 100000)).template.near_nics
    assert not imported(dumps.near_and_far_nics(100000, 200000)).template.near_nics


@pytest.mark.parametrize(
    ("path", "near"), [("PIX", True), ("PXB", True), ("PHB", False), ("P2C", False), ("PXN", False)]
)
def test_a_graph_dump_says_whether_nics_are_near(imported, path, near):
    text = dumps.graph_dump().replace('typeinter="PIX"', f'typeinter="{path}"')
    assert not imported(text).template.near_nics  # there are no NICs
    text = text.replace("<channel>", '<channel><net dev="0"/>').replace("</channel>", '<net dev="1"/></channel>')
    assert imported(text).template.near_nics is near


def test_graphs_of_other_tools_do_not_say_what_joins_the_gpus(imported):
    named = {"TopologyParams": {"name": "DGX1", "alpha": [7e-7, 0]}}
    for value in (dumps.networkx_leaf_spine(), dumps.teccl_matrices(), named):
        assert imported(json.dumps(value)).topology.inside is Medium.UNKNOWN
        assert imported(json.dumps(value), inside=Medium.NVLINK).topology.inside is Medium.NVLINK
    node = imported(dumps.graph_dump(""), inside=Medium.NVLINK)
    assert node.template.inside is node.topology.inside is Medium.NVLINK


# AMD


def test_weights_and_not_hops_say_which_gpus_xgmi_joins(imported):
    found = imported(dumps.rocm_smi_weights())
    assert len(found.template.links) == 24
    assert set(rates(found.template).values()) == {36.0}
    assert found.template.gpu == "mi250x"
    assert set(rates(found.template)) == {pair for a, b in dumps.MI250X_LINKS for pair in ((a, b), (b, a))}


def test_a_ring_of_gpus_is_told_by_its_weights_too(imported):
    ring = {(0, 1), (1, 2), (2, 3), (0, 3)}
    assert set(rates(imported(dumps.rocm_smi_weights(4, ring)).template)) == {
        pair for a, b in ring for pair in ((a, b), (b, a))
    }


def test_a_weight_of_13_is_one_hop(imported):
    text = dumps.rocm_smi_weights().replace(" 15", " 13")
    assert len(imported(text).template.links) == 24


def test_pairs_without_a_rate_beside_pairs_with_one_are_not_joined(imported):
    found = imported(dumps.amd_smi_rates())
    assert len(found.template.links) == 24
    assert set(rates(found.template).values()) == {50.0}
    assert found.template.gpu == "mi250x"


def test_rates_that_are_all_unknown_tell_nothing(imported):
    found = imported(
        dumps.amd_full(8, lambda i: i // 4) + "\n" + dumps.amd_table("NUMA BW TABLE:", ["GPU0"], lambda *_: "")
    )
    assert (len(found.template.links), set(rates(found.template).values())) == (56, {48.0})
    every = {(a, b) for a in range(8) for b in range(a + 1, 8)}
    assert len(imported(dumps.amd_smi_rates(rate="0-0", links=every)).template.links) == 56


@pytest.mark.parametrize(
    ("size", "numa", "gpu", "gbps"),
    [(8, lambda i: i // 4, "mi300x", 48.0), (4, lambda i: i, "mi300a", 96.0), (4, lambda i: i // 2, "mi210", 36.0)],
)
def test_fully_joined_amd_gpus_are_guessed_by_their_number_and_their_numa_nodes(imported, size, numa, gpu, gbps):
    found = imported(dumps.amd_full(size, numa))
    assert (found.template.gpu, set(rates(found.template).values())) == (gpu, {gbps})
    (note,) = found.notes
    assert gpu in note
    assert "--gpu" in note
    named = imported(dumps.amd_full(size, numa), gpu="mi210")
    assert (named.template.gpu, named.notes) == ("mi210", ())


# Several hosts or GPUs in one dump


def test_two_trays_of_a_rack_in_one_dump_are_on_one_switch(imported):
    found = imported(dumps.system(*dumps.tray("0xa1"), *dumps.tray("0xb2", 4, first_net=4)))
    node = found.template
    assert switch_gbps(node) == dict.fromkeys(range(8), 721.8)
    assert [nic.ranks for nic in node.nics] == [(rank,) for rank in range(8)]
    assert (node.links, node.inside, node.gpu) == ((), Medium.NVLINK, "b200")


def test_a_rank_without_nvlink_does_not_reach_the_other_host(imported):
    text = dumps.system(*dumps.tray("0xa1", without=(2,)), *dumps.tray("0xb2", 4, first_net=4))
    node = imported(text).template
    assert set(switch_gbps(node)) == {0, 1, 3, 4, 5, 6, 7}
    assert {pair for pair in rates(node) if 2 in pair} == {p for r in (0, 1, 3) for p in ((2, r), (r, 2))}
    assert node.inside is Medium.PCIE


@pytest.mark.parametrize("without", [(4, 5, 6, 7), tuple(range(8))])
def test_a_host_without_nvlink_is_a_server_of_its_own(imported, without):
    """NCCL writes no such dump: it makes one system only of hosts that an NVLink switch joins. Dumps of each host are joined by NICs."""
    text = dumps.system(*dumps.tray("0xa1", without=without), *dumps.tray("0xb2", 4, first_net=4, without=without))
    with pytest.raises(
        InputError, match=f"host {'0xb2' if 0 not in without else '0xa1'} has no NVLink.*import those files together"
    ):
        imported(text)
    machine = imported(
        *(dumps.system(*dumps.tray(host, without=gone)) for host, gone in (("0xa1", ()), ("0xb2", (0, 1, 2, 3))))
    ).topology
    assert (machine.num_nodes, machine.num_ranks) == (2, 8)
    assert any(machine.node_of[k.src] != machine.node_of[k.dst] for k in machine.links)


def test_ranks_of_hosts_may_be_dealt_out_in_turn(imported):
    cpus = [*dumps.tray("0x1", gpus=2), *dumps.tray("0x2", gpus=2)]
    ranks = iter((0, 2, 1, 3))
    text = dumps.system(*(cpu.replace(f'rank="{i % 2}"', f'rank="{next(ranks)}"') for i, cpu in enumerate(cpus)))
    assert set(switch_gbps(imported(text).template)) == {0, 1, 2, 3}


@pytest.mark.parametrize("hosts", [("0xa1", "0xb2", "0xc3"), ("", "", "")])
def test_trays_of_a_rack_in_a_dump_each_are_on_one_switch(imported, hosts):
    found = imported(*(dumps.system(*dumps.tray(host)) for host in hosts))
    assert switch_gbps(found.template) == dict.fromkeys(range(12), 721.8)
    assert len(found.template.nics) == 12
    assert "one rack" in found.notes[0]


def test_a_tray_that_nodes_multiplies_is_said_to_be_joined_by_nics(imported):
    (note,) = imported(dumps.system(*dumps.tray("0xa1")), nodes=2).notes
    assert "joins trays by their NICs" in note
    assert imported(dumps.nvswitch_node(), nodes=2).notes == ()


def test_dumps_of_several_ranks_of_one_job_are_the_same_machine(imported):
    text = dumps.system(*dumps.tray("0xa1"), *dumps.tray("0xb2", 4))
    assert imported(text, text).template.num_ranks == 8


def test_servers_with_a_switch_of_their_own_are_not_joined_by_it(imported):
    machine = imported(dumps.nvswitch_node(), dumps.nvswitch_node()).topology
    assert (machine.num_nodes, machine.num_ranks) == (2, 16)
    x86 = [dumps.system(*dumps.tray(host, kind=dumps.INTEL_CPU)) for host in ("0x1", "0x2")]
    assert imported(*x86).topology.num_nodes == 2


@pytest.mark.parametrize(("parts", "gbps"), [(2, 721.8), (4, 360.9), (1, 1443.6)])
def test_parts_of_one_gpu_are_ranks_that_share_its_links(imported, parts, gbps):
    node = imported(dumps.cut_up_gpus(parts)).template
    assert switch_gbps(node) == dict.fromkeys(range(2 * parts), gbps)


def test_parts_of_two_gpus_that_nvlink_joins_directly_share_its_links(imported):
    text = dumps.cut_up_gpus(2, links=18)
    device = 'target="fffffff:ff:ff.0" count="18" tclass="0x068000"'
    first, second = text.split('busid="0001:81:00.0"')
    joined = [part.replace(device, f'target="{bus}" count="18" tclass="0x030200"')
              for part, bus in ((first, "0001:81:00.0"), (second, "0000:81:00.0"))]  # fmt: skip
    node = imported('busid="0001:81:00.0"'.join(joined)).template
    across = {pair: gbps for pair, gbps in rates(node).items() if pair[0] // 2 != pair[1] // 2}
    assert across == dict.fromkeys(across, round(18 * 40.1 / 4, 3))
    assert len(across) == 8


def test_a_part_that_is_in_no_job_keeps_its_bandwidth(imported):
    node = imported(dumps.cut_up_gpus(2).replace('rank="3"', "")).template
    assert switch_gbps(node) == dict.fromkeys(range(3), 721.8)


def test_switches_of_one_card_are_joined_locally(imported):
    """The NIC is on the switch beside that of the GPU: without the local link its traffic would pass the CPU."""
    gpu = dumps.pci("0000:05:00.0", dumps.gpu("0000:10:00.0", 0, sm=90, speed="32.0 GT/s PCIe"), speed="16.0 GT/s PCIe")
    nic = dumps.pci(
        "0000:08:00.0", dumps.nic("0000:40:00.0", 0, 400000, speed="32.0 GT/s PCIe"), speed="16.0 GT/s PCIe"
    )
    alone = dumps.system(dumps.cpu(0, gpu, nic))
    joined = alone.replace(
        '<pci busid="0000:05:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">',
        '<pci busid="0000:05:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">'
        '<pcilink target="0000:08:00.0"/>',
    )
    assert [1000 / imported(text).template.nics[0].cost.beta_us_per_mb for text in (alone, joined)] == [
        pytest.approx(24),
        pytest.approx(48),
    ]


def test_an_nvlink_to_itself_is_none(imported):
    text = dumps.nvlink_pairs().replace(dumps.nvlink(dumps.gpu_bus(1), 12), dumps.nvlink(dumps.gpu_bus(0), 12), 1)
    assert (0, 0) not in rates(imported(text).template)


@pytest.mark.parametrize("made", [dumps.nvlink_pairs, dumps.nvswitch_node, dumps.rccl_mi200])
def test_a_link_without_a_class_leads_to_what_its_target_is(imported, made):
    for kind in ("0x030200", "0x068000", "0x038000"):
        assert imported(made().replace(f' tclass="{kind}"', "")).template == imported(made()).template


# Files that NCCL reads


@pytest.mark.parametrize(
    "text", [dumps.topo_file(), dumps.topo_file(nics=False), dumps.topo_file(arch=""), dumps.topo_file(dumps.AMD_CPU)]
)
def test_a_file_that_nccl_reads_is_no_dump(imported, text):
    with pytest.raises(InputError, match=r"NCCL_TOPO_FILE.*NCCL_TOPO_DUMP_FILE") as error:
        imported(text)
    assert "shipped" not in str(error.value)
    with pytest.raises(InputError, match="or use the shipped ndv5"):
        imported(text, stem="ndv5-topo")


def test_devices_of_a_dump_that_are_in_no_job_are_left_out(imported):
    extra = dumps.pci("0000:77:00.0", kind="0x030200") + dumps.pci("0000:78:00.0", kind="0x020700")
    text = dumps.nvlink_pairs().replace("</cpu>", f"{extra}</cpu>", 1)
    assert imported(text).template == imported(dumps.nvlink_pairs()).template


# NICs


@pytest.mark.parametrize(
    ("near", "far", "gbps"), [(400000, 25000, 48.0), (25000, 100000, 12.5), (100000, 100000, 12.5)]
)
def test_the_widest_path_decides_and_then_the_nearest_nic(imported, near, far, gbps):
    (nic,) = imported(dumps.near_and_far_nics(near, far)).template.nics
    assert 1000 / nic.cost.beta_us_per_mb == pytest.approx(gbps)


def test_of_equally_wide_paths_the_one_that_passes_no_cpu_is_taken(imported):
    text = dumps.near_and_far_nics(100000, 100000)
    found = imported(
        text.replace(
            'latency="0.0" speed="100000" port="1" guid="0x2"', 'latency="9" speed="100000" port="1" guid="0x2"'
        )
    )
    assert found.template.nics[0].cost.alpha_us == pytest.approx(2.7)  # and not the 9 us of the NIC at the root complex


# Guesses


@pytest.mark.parametrize(
    ("counts", "gbps"),
    [
        ([18, 18, 18, 16, 18, 18, 18, 18], {3: 329.6}),
        ([18, 18, 17, 18], {2: 350.2}),
        ([18, 17, 16, 18], {1: 350.2, 2: 329.6}),
        ([12, 12, 12, 12, 12, 12, 12, 11], {7: 220.0}),
    ],
)
def test_a_switch_with_lost_links_stays_a_switch(imported, counts, gbps):
    node = imported(dumps.nvlink_matrix(counts)).template
    full = {18: 370.8, 12: 240.0}[max(counts)]
    assert switch_gbps(node) == dict.fromkeys(range(len(counts)), full) | gbps
    assert node.links == ()
    (rank, slow), *_ = gbps.items()
    machine = imported(dumps.nvlink_matrix(counts)).topology
    (index,) = machine.links_between[0, rank]
    assert 1000 / machine.links[index].beta_us_per_mb == pytest.approx(slow)


def test_a_gpu_without_nvlink_leaves_the_others_on_their_switch(imported):
    text = dumps.nvlink_matrix([18] * 8).replace("NV18", "SYS", 7)
    rows = text.splitlines()
    rows[2:9] = [row.replace("NV18", "SYS", 1) for row in rows[2:9]]
    node = imported("\n".join(rows)).template
    assert set(switch_gbps(node)) == set(range(1, 8))
    assert node.inside is Medium.PCIE


@pytest.mark.parametrize(
    ("counts", "gpu", "gbps", "others"),
    [
        ([4, 4], "a40", 48.0, "v100"),
        ([3, 3], "v100", 60.0, "h100"),
        ([2, 2], "p100", 36.0, "v100"),
        ([12, 12], "a100", 240.0, "h100"),
        ([18, 18, 18, 18], "h100", 370.8, "b200"),
    ],
)
def test_the_guessed_gpu_is_told_and_stored(imported, counts, gpu, gbps, others):
    found = imported(dumps.nvlink_matrix(counts))
    assert found.template.gpu == gpu
    found_gbps = switch_gbps(found.template)[0] if found.template.switches else rates(found.template)[0, 1]
    assert found_gbps == gbps
    (note,) = found.notes
    for word in (f"guess by its {counts[0]} NVLinks: {gpu}", others, "--gpu", "GB/s a link"):
        assert word in note
    assert note in found.template.source
    assert json.loads(json.dumps(found.to_json()))["node"]["gpu"] == gpu


def test_the_gpu_that_is_named_is_no_guess(imported):
    found = imported(dumps.nvlink_matrix([18] * 4), gpu="b200")
    assert (switch_gbps(found.template)[0], found.template.gpu, found.notes) == (721.8, "b200", ())
    assert "b200" in found.template.source


@pytest.mark.parametrize(
    ("made", "gpu", "tuned"),
    [
        (dumps.nvswitch_node, "a100", GpuGeneration.AMPERE),
        (dumps.pcie_only, "", None),
        (dumps.rccl_mi300x, "mi300x", None),
        (lambda: dumps.system(*dumps.tray("0x1", sm=90)), "h100", GpuGeneration.HOPPER),
    ],
)
def test_a_dump_names_its_gpu_and_compare_uses_it(imported, made, gpu, tuned):
    found = imported(made())
    assert (found.topology.gpu, found.notes) == (gpu, ())
    assert gpu_of(found.topology) is tuned


def test_soc_of_old_drivers_is_the_path_between_cpus(imported):
    text = dumps.pcie_box_matrix()
    assert imported(text.replace("SYS", "SOC")).template == imported(text).template


# What comes out


@pytest.mark.parametrize(
    "made",
    [
        lambda: dumps.nvlink_matrix([18, 17, 18, 18]),
        lambda: dumps.cut_up_gpus(2),
        lambda: dumps.system(*dumps.tray("0x1", without=(1,)), *dumps.tray("0x2", 4, first_net=4)),
        lambda: dumps.rocm_smi_weights(),
    ],
)
def test_it_is_read_back_and_synthesized_on(imported, tmp_path, made):
    found = imported(made())
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(found.to_json()))
    assert read_template(path) == found.template
    options = Options(limits=Limits(seconds=1.0))
    synthesis = synthesize(
        Request(str(path), Kind.ALLGATHER, size_bytes=1 << 20, engine="greedy", options=options), Events()
    )
    assert lower_and_verify(synthesis.schedule, LoweringOptions(EXECUTOR)).verdict.violations == ()


# SCCL


def sccl(links, switches=(), key="sccl_type"):
    return json.dumps({key: "topology", "name": "made up", "links": links, "switches": list(switches)})


@pytest.mark.parametrize("key", ["sccl_type", "msccl_type"])
def test_an_sccl_topology_has_links_from_column_to_row_in_units_of_an_nvlink(imported, key):
    found = imported(sccl([[0, 2, 1], [2, 0, 0], [0, 1, 0]], key=key))
    machine = found.topology
    assert {(k.src, k.dst): round(1000 / k.beta_us_per_mb, 6) for k in machine.links} == {
        (1, 0): 40, (2, 0): 20, (0, 1): 40, (1, 2): 20,
    }  # fmt: skip
    assert (machine.inside, machine.gpu, found.formats) == (Medium.UNKNOWN, "", ("sccl",))
    assert "v100, 20 GB/s" in found.notes[0]
    named = imported(sccl([[0, 1], [1, 0]]), gpu="h100")
    assert (1000 / named.topology.links[0].beta_us_per_mb, named.topology.gpu, named.notes) == (
        pytest.approx(20.6),
        "h100",
        (),
    )


def test_an_sccl_switch_is_a_port_of_the_links_between_its_ends(imported):
    every = [[int(a != b) for b in range(3)] for a in range(3)]
    machine = imported(sccl(every, [[[0], [1, 2], 1, "out"]])).topology
    users = {(k.src, k.dst) for k in machine.links if k.ports}
    assert users == {(0, 1), (0, 2)}
    assert 1000 / machine.ports[0].beta_us_per_mb == pytest.approx(20)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (sccl([[0, 1], [1]]), "links"),
        (sccl([]), "found 0 rows"),
        (sccl([[0, 0], [1, 0]]), "rank 0 cannot be reached"),
        (sccl([[0, 1], [1, 0]], [[[0], [5], 1, "s"]]), "rank that does not exist"),
        (sccl([[0, 1], [1, 0]], [[[0], [1], 1]]), "is no list of sources"),
    ],
)
def test_a_wrong_sccl_topology_is_refused(imported, text, words):
    with pytest.raises(InputError, match=words) as error:
        imported(text)
    assert "dump.txt" in str(error.value)
