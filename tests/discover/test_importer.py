"""Dumps of other tools become machines, with known links, ports and rates; what is malformed is refused in one sentence."""

import json
from collections import Counter

import pytest

from taccl_py.collective import Kind
from taccl_py.discover.formats import DumpFormat
from taccl_py.discover.importer import import_machine
from taccl_py.errors import InputError
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.deliver import lower_and_verify
from taccl_py.pipeline.resolve import Request
from taccl_py.pipeline.search import synthesize
from taccl_py.runtimes import RUNTIMES
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Events, Options
from taccl_py.topology.files import read_template, template_to_json
from taccl_py.topology.model import Medium
from taccl_py.topology.template import PortSide, Side
from tests.discover import dumps

SERVERS = {
    "nccl-nvswitch": (dumps.nvswitch_node, 2),
    "nccl-pairs": (dumps.nvlink_pairs, 2),
    "nccl-pcie": (dumps.pcie_only, 1),
    "rccl-mi300x": (dumps.rccl_mi300x, 2),
    "rccl-mi200": (dumps.rccl_mi200, 1),
    "nccl-graph": (dumps.graph_dump, 1),
    "smi-dgx1": (dumps.dgx1_matrix, 2),
    "smi-dgx2": (lambda: dumps.switched_matrix(16, 6, 8), 2),
    "smi-dgx-a100": (lambda: dumps.switched_matrix(8, 12, 8, ("PXB", "NODE")), 2),
    "smi-hgx-h100": (lambda: dumps.switched_matrix(8, 18, 8), 2),
    "smi-pcie": (dumps.pcie_box_matrix, 2),
    "rocm-smi": (dumps.rocm_smi, 1),
    "amd-smi": (dumps.amd_smi, 1),
    "networkx": (lambda: json.dumps(dumps.networkx_leaf_spine()), 1),
    "te-ccl": (lambda: json.dumps(dumps.teccl_matrices()), 1),
}


@pytest.fixture
def imported(tmp_path):
    """Import one text, named as in SERVERS or given."""

    def read(stem, text=None, **options):
        path = tmp_path / f"{stem}.txt"
        path.write_text(SERVERS[stem][0]() if text is None else text, encoding="utf-8")
        return import_machine([path], **options)

    return read


def rates(template):
    """GB/s of every link inside a node, by (src, dst)."""
    return {(link.src, link.dst): 1000 / link.cost.beta_us_per_mb for link in template.links}


@pytest.mark.parametrize("name", SERVERS)
def test_every_machine_is_synthesized_on_and_verified(imported, tmp_path, name):
    nodes = SERVERS[name][1]
    machine = imported(name, nodes=nodes if nodes > 1 else None)
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(machine.to_json()))
    request = Request(
        str(path), Kind.ALLGATHER, size_bytes=1 << 20, engine="trees", options=Options(limits=Limits(seconds=1.0))
    )
    synthesis = synthesize(request, Events())  # raises if the verifier of schedules objects
    lowered = lower_and_verify(synthesis.schedule, LoweringOptions(RUNTIMES["executor"]))  # and that of programs
    assert lowered.verdict.violations == ()
    assert synthesis.schedule.topology.num_nodes == (2 if name == "networkx" else nodes)
    assert synthesis.schedule.makespan_us > 0


def test_an_nvswitch_node_is_a_switch_and_a_nic_for_each_gpu(imported):
    node = imported("nccl-nvswitch").template
    (switch,) = node.switches
    assert (switch.ranks, switch.cost.beta_us_per_mb) == (tuple(range(8)), pytest.approx(1000 / 240))
    assert node.links == ()
    assert [nic.ranks for nic in node.nics] == [(rank,) for rank in range(8)]
    # The slot (24 GB/s) of each NIC of 25 GB/s is its own, so it is the NIC's rate and no port.
    assert [nic.cost.beta_us_per_mb for nic in node.nics] == [pytest.approx(1000 / 24)] * 8
    assert node.ports == ()
    assert (1, 0, 3, 2, 5, 4, 7, 6) in node.symmetry


def test_gpus_that_nvlink_does_not_join_share_the_path_between_the_cpus(imported):
    node = imported("nccl-pairs").template
    assert rates(node)[0, 1] == pytest.approx(240)
    assert rates(node)[0, 2] == pytest.approx(16)  # AMD's way between CPUs, slower than the slots
    way = [f"{use.port}.{use.side}" for link in node.links if (link.src, link.dst) == (0, 2) for use in link.ports]
    assert "cpu0-cpu1.out" in way
    crossing = [link for link in node.links if any(use.port == "cpu0-cpu1" for use in link.ports)]
    assert len(crossing) == 8  # 2 x 2 GPUs, both directions
    (nic,) = node.nics
    assert nic.ranks == (0, 1, 2, 3)  # there is no other
    # Sending from the second CPU goes against the direction in which the way between the CPUs is written.
    assert nic.via[2][-1] == PortSide("cpu0-cpu1", Side.IN)
    assert nic.cost.beta_us_per_mb == pytest.approx(80)


def test_a_node_is_joined_by_pcie_where_some_gpus_have_no_other_path(imported):
    joined = {name: imported(name).template.inside for name in SERVERS if imported(name).template}
    assert {name for name, inside in joined.items() if inside is Medium.PCIE} == {
        "nccl-pcie",
        "smi-pcie",
        "nccl-pairs",
        "rocm-smi",
    }
    assert joined["nccl-nvswitch"] is joined["smi-dgx1"] is joined["rccl-mi300x"] is Medium.NVLINK


def test_a_server_without_nvlink_has_only_paths_over_pcie(imported):
    node = imported("nccl-pcie").template
    assert rates(node)[0, 1] == pytest.approx(12)  # Gen3 x16, through the switch
    assert rates(node)[0, 2] == pytest.approx(10)  # Skylake's way between CPUs
    assert len(node.links) == 12
    assert node.nics == ()
    users = Counter(use.port for link in node.links for use in link.ports)
    # Uplinks of the two switches carry what the CPUs' way carries, and are faster: they never bind.
    assert set(users) == {"cpu0-cpu1", *(f"pci-0000-1{rank}-00-0" for rank in range(4))}


def test_xgmi_is_counted_as_rccl_does(imported):
    full = imported("rccl-mi300x").template
    assert list(rates(full).values()) == [pytest.approx(48)] * 56
    assert [nic.ranks for nic in full.nics] == [(rank,) for rank in range(8)]
    ring = rates(imported("rccl-mi200").template)
    assert ring == {
        pair: pytest.approx(gbps)
        for gbps, pairs in ((72, [(0, 1), (1, 0), (2, 3), (3, 2)]), (36, [(0, 3), (3, 0), (1, 2), (2, 1)]))
        for pair in pairs
    }


def test_a_graph_dump_gives_the_links_that_its_channels_use(imported):
    node = imported("nccl-graph").template
    pairs = [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert rates(node) == {pair: pytest.approx(20) for a, b in pairs for pair in ((a, b), (b, a))}


def test_the_matrix_of_a_dgx1_is_its_cube_mesh_with_a_nic_for_each_pair(imported):
    node = imported("smi-dgx1").template
    assert Counter(round(gbps) for gbps in rates(node).values()) == {40: 16, 20: 16}
    assert [nic.ranks for nic in node.nics] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert {round(1000 / nic.cost.beta_us_per_mb, 3) for nic in node.nics} == {12.0}  # Gen3 slots, below 100 Gb/s


@pytest.mark.parametrize(
    ("name", "ranks", "gbps", "nics"),
    [("smi-dgx2", 16, 120, 8), ("smi-dgx-a100", 8, 240, 8), ("smi-hgx-h100", 8, 370.8, 8)],
)
def test_equal_numbers_of_links_that_no_gpu_could_have_mean_a_switch(imported, name, ranks, gbps, nics):
    node = imported(name).template
    (switch,) = node.switches
    assert (len(switch.ranks), 1000 / switch.cost.beta_us_per_mb) == (ranks, pytest.approx(gbps))
    assert [len(nic.ranks) for nic in node.nics] == [ranks // nics] * nics


def test_the_gpu_that_is_named_sets_the_rates(imported):
    (switch,) = imported("smi-hgx-h100", gpu="b200").template.switches
    assert 1000 / switch.cost.beta_us_per_mb == pytest.approx(18 * 40.1)


def test_four_gpus_with_four_links_for_each_other_need_no_switch(imported):
    text = dumps.nvidia_matrix([f"GPU{i}" for i in range(4)], lambda *_: "NV4", lambda _: ("0-31", "0", "N/A"))
    node = imported("square", text).template
    assert (node.switches, rates(node)[0, 3]) == ((), pytest.approx(80))


def test_pcie_cards_share_the_nic_and_the_path_to_it(imported):
    node = imported("smi-pcie").template
    assert len(node.links) == 12
    (nic,) = node.nics
    assert nic.ranks == (0, 1, 2, 3)
    assert [PortSide("cpu0-cpu1", Side.OUT) in nic.via.get(rank, ()) for rank in nic.ranks] == [
        True,
        True,
        False,
        False,
    ]


def test_amd_texts_state_links_and_sometimes_rates(imported):
    pairs = rates(imported("rocm-smi").template)
    assert (pairs[0, 1], pairs[0, 2]) == (pytest.approx(36), pytest.approx(16))
    assert list(rates(imported("amd-smi").template).values()) == [pytest.approx(50)] * 12


def test_the_note_of_a_guess_states_the_rate_that_counts(imported):
    (guessed,), (stated,) = (imported(name).notes for name in ("rocm-smi", "amd-smi"))
    assert (
        guessed == "the GPU is a guess by its 1 xGMI link: mi210, 36 GB/s a link; if it is another, name it with --gpu"
    )
    assert "mi210, and rates of links are those of the file; if" in stated


@pytest.mark.parametrize(
    ("name", "gpu", "known"),
    [
        ("smi-dgx1", "mi300x", "v100"),
        ("rocm-smi", "h100", "mi210"),
        ("rccl-mi300x", "h100", "mi300x"),
        ("nccl-nvswitch", "mi300x", "a100"),
    ],
)
def test_a_gpu_of_another_maker_is_refused(imported, name, gpu, known):
    with pytest.raises(
        InputError, match=f"--gpu: {gpu} is no GPU of the (matrix|topology dump) of .*{known}.* leave it out"
    ):
        imported(name, gpu=gpu)


def test_edges_to_switches_become_ports(imported):
    machine = imported("networkx").topology
    (index,) = machine.links_between[0, 3]
    link = machine.links[index]
    names = [machine.ports[port].name for port in link.ports]
    assert names == ["g0 to leaf0", "leaf0 to spine", "spine to leaf1", "leaf1 to g3"]
    assert (link.alpha_us, link.beta_us_per_mb) == (pytest.approx(2.0), pytest.approx(100))
    assert machine.node_of == (0, 0, 1, 1)


def test_alpha_of_te_ccl_is_latency_that_occupies_nothing(imported):
    machine = imported("te-ccl").topology
    link = machine.links[0]
    assert (link.alpha_us, link.latency_us, link.beta_us_per_mb) == (0.0, pytest.approx(1.0), pytest.approx(10))
    named = imported("te", json.dumps({"TopologyParams": {"name": "DGX1", "alpha": [7e-7, 0]}})).topology
    assert (len(named.links), named.links[0].latency_us) == (32, pytest.approx(0.7))
    mesh = imported("te", json.dumps({"TopologyParams": {"name": "Mesh", "side_length": 3}})).topology
    assert (mesh.num_ranks, len(mesh.links)) == (9, 24)


def test_formats_are_recognised_by_what_stands_in_them(imported):
    expected = {
        "nccl": DumpFormat.NCCL, "rccl": DumpFormat.NCCL, "smi": DumpFormat.NVIDIA_SMI, "rocm": DumpFormat.AMD_SMI,
        "amd": DumpFormat.AMD_SMI, "networkx": DumpFormat.NETWORKX, "te": DumpFormat.TECCL,
    }  # fmt: skip
    for name in SERVERS:
        form = DumpFormat.NCCL_GRAPH if name == "nccl-graph" else expected[name.split("-")[0]]
        assert imported(name).formats == (form,)


def test_one_server_is_a_node_that_can_be_multiplied_and_alphas_are_said_to_be_assumed(imported, tmp_path):
    found = imported("nccl-nvswitch", name="mine")
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(found.to_json()))
    assert read_template(path) == found.template
    assert "not measured" in found.template.source
    four = imported("nccl-nvswitch", nodes=4)
    assert (four.template, four.topology.num_ranks, four.topology.num_nodes) == (None, 32, 4)


def test_several_dumps_are_several_servers_which_need_not_be_alike(tmp_path):
    paths = [tmp_path / name for name in ("a.xml", "b.xml")]
    paths[0].write_text(dumps.nvswitch_node())
    paths[1].write_text(dumps.nvlink_pairs())
    machine = import_machine(paths, name="odd").topology
    assert machine.node_of == (0,) * 8 + (1,) * 4
    assert (0, 8) in machine.links_between
    with pytest.raises(InputError, match="--nodes: 2 files are 2 servers"):
        import_machine(paths, nodes=2)


def test_a_gpu_that_is_in_no_job_is_left_out(imported):
    text = dumps.nvlink_pairs().replace('rank="3"', "")
    assert imported("cut", text).template.num_ranks == 3


def test_nets_with_one_guid_and_port_are_one_nic(imported):
    text = dumps.nvswitch_node().replace('guid="0x2"', 'guid="0x1"')
    assert len(imported("twice", text).template.nics) == 7


def test_c2c_is_the_path_to_the_cpu_and_wider_than_pcie(imported):
    text = dumps.pcie_only().replace("</gpu>", '<c2c bw="50000" count="1"/></gpu>')
    assert rates(imported("grace", text).template)[0, 2] == pytest.approx(10)
    assert rates(imported("grace", text.replace('modelid="85"', 'modelid="207"')).template)[0, 2] == pytest.approx(40)


MALFORMED = {
    "no format": ("hello", "known format", "--format"),
    "cut xml": (dumps.nvswitch_node()[:400], "is not XML", "dump"),
    "another root": ("<html/>", "'html'", "system"),
    "no gpu": ('<system version="1"></system>', "no GPU", "dump"),
    "no numaid": (dumps.pcie_only().replace('numaid="0"', ""), "cpu.numaid", "missing"),
    "bad width": (dumps.pcie_only().replace('link_width="16"', 'link_width="wide"'), "link_width", "'wide'"),
    "bad count": (dumps.nvlink_pairs().replace('count="12"', 'count="many"'), "nvlink 0000:11:00.0.count", "'many'"),
    "bad speed": (dumps.nvlink_pairs().replace('speed="100000"', 'speed="fast"'), "net 0.speed", "'fast'"),
    "gpu twice": (dumps.pcie_only().replace("0000:11", "0000:10"), "0000:10:00.0", "twice"),
    "graph without channels": ('<graphs version="1"><graph id="0"/></graphs>', "graph", "no channel"),
    "graph without speed": (dumps.graph_dump().replace('speedintra="20"', ""), "graph 0.speedintra", "nothing"),
    "cut matrix": ("\n".join(dumps.dgx1_matrix().splitlines()[:3]), "row GPU2", "0 of 12 cells"),
    "cut row": (dumps.pcie_box_matrix().replace("PHB", "", 1), "row GPU0, column GPU1", "'SYS'"),
    "odd cell": (dumps.pcie_box_matrix().replace("PHB", "PHX"), "row GPU0, column GPU1", "'PHX'"),
    "contradiction": (
        dumps.dgx1_matrix().replace("NV1", "SYS", 1),
        "row GPU0, column GPU2",
        "found 'SYS', and row GPU2, column GPU0 has 'NV1'; the same is needed in both directions",
    ),
    "cut table": (dumps.amd_smi()[:500].rsplit("\n", 1)[0], "row", "cells"),
    "one way": (dumps.rocm_smi().replace("XGMI", "PCIE", 1), "row GPU1, column GPU0", "one direction"),
    "no link types": (dumps.rocm_smi_weights().split("===== Link Type")[0], "no table of link types", "rocm-smi --showtopo"),
    "odd numa node": (dumps.rocm_smi().replace("Numa Node: 1", "Numa Node: x"), "Numa Node of GPU", "'x'"),
    "unknown json": ("{}", "neither a networkx graph", "TACCL"),
    "our own": ('{"format": "taccl-topology"}', "already", "as it is"),
    "no rate": (json.dumps(dumps.networkx_leaf_spine()).replace("bandwidth_gbps", "rate"), "links.0", "missing"),
    "no vertex": (json.dumps(dumps.networkx_leaf_spine()).replace('"g0"', '"h0"', 1), "links.0.source", "'g0'"),
    "apart": ('{"nodes": [{"id": 0}, {"id": 1}], "links": []}', "rank 1", "add links"),
    "short row": ('{"capacity": [[0, 1], [1]], "alpha": [[0, 0], [0, 0]]}', "capacity.1", "found 1 numbers"),
    "built in code": ('{"TopologyParams": {"name": "AMD"}}', "TopologyParams.name", "'AMD'"),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_malformed_is_refused_in_one_sentence_that_names_file_and_place(imported, name):
    text, *words = MALFORMED[name]
    with pytest.raises(InputError) as error:
        imported("bad", text)
    sentence = str(error.value)
    assert "bad.txt" in sentence
    assert "\n" not in sentence
    for word in words:
        assert word in sentence, sentence


def test_servers_without_a_nic_cannot_be_multiplied(imported):
    with pytest.raises(InputError, match="has no NICs that could join 2 nodes"):
        imported("nccl-pcie", nodes=2)


def test_a_whole_machine_is_not_multiplied(imported):
    with pytest.raises(InputError, match="and is not multiplied; leave it out"):
        imported("networkx", nodes=2)


def test_node_forms_of_all_servers_read_back(imported, tmp_path):
    for name in SERVERS:
        template = imported(name).template
        if template is not None:
            path = tmp_path / f"{name}.json"
            path.write_text(json.dumps(template_to_json(template)))
            assert read_template(path) == template
