"""Runtime profiles of machines with several models of GPUs: of every figure the slower one."""

from dataclasses import replace

import pytest

from taccl_py.errors import InputError
from taccl_py.jsonio import canonical_json
from taccl_py.profiles.catalog import list_profiles, load_profile, select_profile
from taccl_py.profiles.files import profile_to_json, read_profile
from taccl_py.profiles.slowest import slowest_of
from taccl_py.profiles.view import usable_shares
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.files import read_topology, topology_to_json


def test_of_a100_and_h100_threadblocks_are_those_of_a100_and_links_keep_their_own_rates():
    both = load_profile("executor-a100+h100")
    assert (both.name, both.runtime, both.gpu) == ("executor-a100+h100", "executor", "a100+h100")
    assert {name: costs.tb_gbps for name, costs in both.protocols.items()} == {"LL": 3.7, "LL128": 20.0, "Simple": 24.0}
    assert both.most_threadblocks == 108
    assert "nvls" not in both.shares  # A100 has none
    # 0.769 of what each has: of 450 GB/s of H100, and of 300 of A100.
    assert usable_shares(load_topology("h100+a100"), both).near == pytest.approx(0.769)
    assert both.figures["protocols/LL/tb_gbps"] == load_profile("executor-a100").figures["protocols/LL/tb_gbps"]


def test_of_mi250x_and_mi300x_each_figure_is_of_whoever_is_slower():
    both, old, new = (load_profile(f"rccl-{gpus}") for gpus in ("mi250x+mi300x", "mi250x", "mi300x"))
    assert both.protocols["Simple"].tb_gbps == old.protocols["Simple"].tb_gbps < new.protocols["Simple"].tb_gbps
    assert both.protocols["Simple"].reduce_us == new.protocols["Simple"].reduce_us
    assert both.gpu_gbps == new.gpu_gbps  # of MI250X none is known
    # 36 of 50 GB/s of the slower link.
    assert usable_shares(load_topology("mi250x+mi300x"), both).near == pytest.approx(0.72)


def test_figures_are_compared_in_their_own_direction():
    one = load_profile("executor-a100")
    costs = one.protocols["LL"]
    other = replace(
        one, protocols={"LL": replace(costs, op_us=9.0, tb_gbps=1.0, slots=1.0, wire=3.0, payload_bytes=64.0)}
    )
    both = slowest_of("both", [one, other])
    assert [*both.protocols] == ["LL"]
    assert both.protocols["LL"] == replace(costs, op_us=9.0, tb_gbps=1.0, slots=1.0, wire=3.0, payload_bytes=64.0)


@pytest.mark.parametrize("profile", list_profiles(), ids=lambda one: one.name)
def test_a_profile_with_itself_is_itself(profile):
    again = slowest_of(profile.name, [profile, profile])
    same = replace(again, title=profile.title, gpu=profile.gpu, source=profile.source)
    assert (same, again.figures) == (profile, profile.figures)


def test_the_order_of_gpus_makes_no_other_profile():
    assert load_profile("executor-h100+a100") == load_profile("executor-a100+h100")
    assert load_profile("executor-a100+a100") == load_profile("executor-a100")


def test_it_is_written_and_read(tmp_path):
    both, path = load_profile("mscclpp-a100+h100"), tmp_path / "both.json"
    path.write_text(canonical_json(profile_to_json(both)))
    assert read_profile(path) == both


def test_machines_choose_it_by_their_gpus(tmp_path):
    machine, path = load_topology("h100-x2+a100-x2"), tmp_path / "mixed.json"
    path.write_text(canonical_json(topology_to_json(machine)))
    assert read_topology(path).gpu_models == machine.gpu_models == ("a100", "h100")
    assert select_profile("auto", "executor", read_topology(path)).profile.name == "executor-a100+h100"


def test_where_one_gpu_has_no_profile_times_are_of_links_and_ports():
    found = select_profile("auto", "executor", load_topology("h100+mi300x"))
    assert found.profile.is_neutral
    assert found.note == "there is no runtime profile executor-mi300x (--runtime-profile names one)"


def test_unknown_parts_of_a_name_are_refused():
    with pytest.raises(InputError, match="'executor-a100\\+t4' is not a runtime profile"):
        load_profile("executor-a100+t4")
