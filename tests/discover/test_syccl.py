"""Configurations of SyCCL become machines: who is joined, how fast, and what is shared."""

import json

import pytest

from taccl_py.discover.importer import import_machine
from taccl_py.errors import InputError
from taccl_py.topology.model import Medium

LAYERS = [
    {"layer_id": 0, "type": "local", "link_spec": "memcpy"},
    {"layer_id": 1, "type": "host", "link_spec": "nvlink"},
    {"layer_id": 2, "type": "nic", "link_spec": "link_nic"},
]
RAILS = {"layer_id": 3, "type": "switch", "switch_topo": "multirail", "switch_num": 2, "link_spec": "netlink"}
LEAVES = {"layer_id": 3, "type": "switch", "switch_topo": "pod", "switch_num": 2, "link_spec": "netlink"}
SPINE = {"layer_id": 4, "type": "switch", "switch_topo": "pod", "switch_num": 1, "link_spec": "spine"}
SPECS = {
    "memcpy": {"bw_mbpus": 10, "lat_us": 0.01},
    "nvlink": {"bw_mbpus": 0.2, "lat_us": 3},
    "link_nic": {"bw_mbpus": 0.05, "lat_us": 0},
    "netlink": {"bw_mbpus": 0.05, "lat_us": 10},
    "spine": {"bw_mbpus": 0.04, "lat_us": 12},
}


def written(switches=(), *, hosts=2, gpus=4, nics=2, joined="nvswitch", tables=None, specs=None, topo=None):
    return {
        "coll": {"name": "allgather", "byte": 4096, "root_sender": -1, "root_receiver": -1},
        "hosts": {"host_num": hosts, "host_gpu_num": gpus, "host_nic_num": nics, "host_links": joined},
        "topo": [*LAYERS, *switches] if topo is None else topo,
        "host_links": tables or {},
        "link_spec": SPECS | (specs or {}),
        "solver": {"split_chunks": 1, "chunk_size_B": 0},
    }


@pytest.fixture
def imported(tmp_path):
    def make(config, **options):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        return import_machine([path], **options).topology

    return make


def pairs_between(machine):
    return {(k.src, k.dst) for k in machine.links if machine.node_of[k.src] != machine.node_of[k.dst]}


def rate_gbps(thing):
    return round(1000 / thing.beta_us_per_mb, 6)


def test_rails_join_the_gpus_of_nics_of_the_same_number(imported):
    machine = imported(written([RAILS]))
    assert (machine.name, machine.node_of, machine.inside) == ("config", (0,) * 4 + (1,) * 4, Medium.NVLINK)
    rail = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
    there = {(src, 4 + dst) for src, others in rail.items() for dst in others}
    assert pairs_between(machine) == there | {(b, a) for a, b in there}
    inside = next(k for k in machine.links if (k.src, k.dst) == (0, 1))
    between = next(k for k in machine.links if (k.src, k.dst) == (0, 4))
    assert (rate_gbps(inside), inside.alpha_us) == (200, 3)
    assert (rate_gbps(between), between.alpha_us) == (50, 10)
    assert [machine.ports[p].name for p in inside.ports] == ["GPU 0 out", "GPU 1 in"]
    assert [machine.ports[p].name for p in between.ports] == ["NIC 0 of host 0 out", "NIC 0 of host 1 in"]
    shares = {k.src for k in machine.links if between.ports[0] in k.ports}
    assert shares == {0, 1}


def test_pods_join_all_gpus_and_their_trunks_are_shared(imported):
    machine = imported(
        written([LEAVES, SPINE], hosts=4, gpus=2, nics=1, specs={"spine": {"bw_mbpus": 0.04, "lat_us": 12}})
    )
    assert len(pairs_between(machine)) == 8 * 6
    near = next(k for k in machine.links if (k.src, k.dst) == (0, 2))
    far = next(k for k in machine.links if (k.src, k.dst) == (0, 4))
    assert (rate_gbps(near), near.alpha_us, len(near.ports)) == (50, 10, 2)
    assert (rate_gbps(far), far.alpha_us) == (40, 12)
    assert [machine.ports[p].name for p in far.ports] == [
        "NIC 0 of host 0 out", "NIC 0 of host 2 in", "switch 0 of layer 0 up", "switch 1 of layer 0 down",
    ]  # fmt: skip
    assert {k.src for k in machine.links if far.ports[2] in k.ports} == {0, 1, 2, 3}
    assert [rate_gbps(machine.ports[p]) for p in far.ports] == [50, 50, 40, 40]


def test_gpus_may_be_joined_one_by_one(imported):
    ring = {"ring": [[1, 3], [0, 2], [1, 3], [0, 2]]}
    machine = imported(written(hosts=1, nics=0, joined="ring", tables=ring))
    assert {(k.src, k.dst) for k in machine.links} == {(a, b) for a, row in enumerate(ring["ring"]) for b in row}
    assert (machine.ports, machine.inside) == ((), Medium.UNKNOWN)
    assert (
        imported(written([RAILS], joined="nvlink", tables={"nvlink": [[1, 2, 3], [0], [0], [0]]})).inside
        is Medium.NVLINK
    )
    assert imported(written([RAILS]), inside=Medium.PCIE).inside is Medium.PCIE


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (written(), "has no layer of switches, which 2 hosts need"),
        (written([RAILS], topo=[*LAYERS[2:], RAILS]), "has no layer of type host"),
        (written([RAILS | {"switch_num": 3}]), "found 3, which does not divide the 2 NICs of a host"),
        (written([LEAVES | {"switch_num": 4}]), "found 4, which does not divide the 2 hosts"),
        (written([LEAVES, SPINE | {"switch_num": 4}]), "does not divide the 2 switches below"),
        (written([RAILS, RAILS]), "found 'multirail' above other switches"),
        (written([LEAVES | {"switch_topo": "torus"}]), "found 'torus', use one of: multirail, pod"),
        (written([LEAVES | {"link_spec": "lost"}]), "found 'lost', which link_spec does not have"),
        (written([RAILS], nics=3), "found 3, which does not divide the 4 GPUs"),
        (written([RAILS], nics=0), "host_nic_num"),
        (written([RAILS], hosts=60000), "more than 65536 ranks"),
        (written([RAILS], hosts=4000), "import a smaller machine"),
        (written([RAILS], joined="mesh"), "found 'mesh', use nvswitch or a list that host_links has"),
        (written([RAILS], joined="a", tables={"a": [[1]]}), "found 1 lists, 4 are needed"),
        (written([RAILS], joined="a", tables={"a": [[1], [2], [3], [4]]}), "names GPU 4"),
        (written(hosts=1, joined="a", tables={"a": [[1], [0], [3], [2]]}), "cannot be reached"),
        (written([RAILS], specs={"nvlink": {"bw_mbpus": 0, "lat_us": 1}}), "bw_mbpus"),
        (written([RAILS], specs={"nvlink": {"bw_mbpus": 1}}), "lat_us"),
    ],
)  # fmt: skip
def test_a_wrong_configuration_is_refused(imported, config, words):
    with pytest.raises(InputError, match=words) as error:
        imported(config)
    assert "config.json" in str(error.value)


def test_a_whole_machine_is_not_multiplied(imported):
    with pytest.raises(InputError, match="is not multiplied"):
        imported(written([RAILS]), nodes=2)
