"""Profiles that stand in for those of GPUs without figures of their own."""

import pytest

from taccl_py.jsonio import canonical_json
from taccl_py.profiles.alike import ALIKE_GPUS
from taccl_py.profiles.catalog import load_profile, profile_names, select_profile
from taccl_py.profiles.files import profile_to_json, read_profile
from taccl_py.profiles.view import usable_shares
from taccl_py.topology.catalog import load_topology


@pytest.mark.parametrize(
    ("machine", "runtime", "name"),
    [
        ("hpn:1", "executor", "executor-h800"),
        ("nvl72:1", "executor", "executor-gb200"),
        ("hpn:1", "mscclpp", "mscclpp-h800"),
    ],
)
def test_machines_of_such_gpus_have_one_by_default(machine, runtime, name):
    found = select_profile("auto", runtime, load_topology(machine))
    assert (found.profile.name, found.note) == (name, "")
    assert load_profile(name) == found.profile


def test_it_has_the_costs_of_the_gpu_that_is_alike_and_none_is_measured():
    found, alike = load_profile("rccl-mi325x"), load_profile("rccl-mi300x")
    assert found.protocols == alike.protocols
    assert (alike.evidence, found.evidence) == ("partly measured", "not measured")
    assert not any(figure.measured for figure in found.figures.values())
    assert "rccl-mi300x" in found.source


def test_a_gpu_with_fewer_links_has_the_same_share_of_them():
    # H800 has 200 GB/s of NVLink in one direction, and 0.77 of them are reached, as 0.77 of an H100's 450 are.
    machine, h100 = load_topology("hpn:1"), load_profile("executor-h100")
    share = h100.shares["nvlink"]
    assert load_profile("executor-h800").shares["nvlink"].value == share.value
    assert usable_shares(machine, load_profile("executor-h800")).near == pytest.approx(share.value)
    assert usable_shares(machine, h100).near == 1.0


def test_one_of_several_gpus_may_be_such_a_gpu():
    found = load_profile("executor-h800+a100")
    assert (found.name, found.gpu) == ("executor-a100+h800", "a100+h800")
    assert found.shares["nvlink"].of_gbps == 300.0


def test_it_is_written_and_read(tmp_path):
    found, path = load_profile("executor-h800"), tmp_path / "mine.json"
    path.write_text(canonical_json(profile_to_json(found)))
    assert read_profile(path) == found


def test_no_shipped_profile_is_hidden_by_one():
    shipped = {name.partition("-")[2] for name in profile_names()}
    assert not shipped & set(ALIKE_GPUS)


def test_a_gpu_whose_like_has_none_either_has_links_and_ports_alone():
    machine = load_topology("nvl72:1")
    found = select_profile("auto", "mscclpp", machine)
    assert found.profile.is_neutral
    assert found.note == "there is no runtime profile mscclpp-gb200 (--runtime-profile names one)"
