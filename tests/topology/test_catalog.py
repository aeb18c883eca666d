from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taccl_py.errors import InputError
from taccl_py.topology import catalog
from taccl_py.topology.catalog import data_dir, list_topologies, load_topology

MACHINE: dict[str, Any] = {
    "format": "taccl-topology",
    "version": 1,
    "name": "pair",
    "description": "two ranks",
    "source": "invented",
    "node": {
        "ranks": 2,
        "links": [{"from": 0, "to": [1], "both_ways": True, "alpha_us": 1, "beta_us_per_mb": 1}],
        "nics": [{"name": "ib0", "ranks": "all", "alpha_us": 2, "beta_us_per_mb": 2}],
    },
    "network": {"reach": "all"},
}


def test_shipped_name_is_one_node_unless_more_are_asked_for() -> None:
    assert load_topology("ndv2").num_nodes == 1
    assert load_topology("ndv2", 1).num_nodes == 1
    assert load_topology("ndv2", 3).num_ranks == 24


def test_name_may_say_the_number_of_nodes() -> None:
    assert load_topology("ndv2-x2") == load_topology("ndv2", 2) == load_topology("ndv2-x2", 2)
    assert load_topology("ndv2-x2").name == "ndv2-x2", "what is printed can be typed"
    with pytest.raises(InputError, match="'ndv2-x2' and 3 nodes contradict each other"):
        load_topology("ndv2-x2", 3)


def test_formula_is_one_whole_machine() -> None:
    assert load_topology("ring:5").num_ranks == 5
    assert load_topology("ring:5", 1).num_ranks == 5
    with pytest.raises(InputError, match="is a whole machine and is not multiplied"):
        load_topology("ring:5", 2)


def test_file_is_read_from_its_path(tmp_path: Path, write_json: Callable[..., Path]) -> None:
    path = write_json(MACHINE, "mine.json")
    assert load_topology(str(path), 2).name == "pair-x2"
    plain = write_json(MACHINE, "no_suffix")
    assert load_topology(str(plain)).name == "pair"
    with pytest.raises(InputError, match=r"missing.json: there is no such file"):
        load_topology(str(tmp_path / "missing.json"))


def test_file_in_the_current_folder_needs_no_folder(
    tmp_path: Path, write_json: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json(MACHINE, "mine")
    monkeypatch.chdir(tmp_path)
    assert load_topology("mine").name == "pair"


def test_shipped_name_comes_before_a_file_of_that_name(
    tmp_path: Path, write_json: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json(MACHINE, "ndv2")
    monkeypatch.chdir(tmp_path)
    assert load_topology("ndv2").name == "ndv2"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ndv3", "did you mean ndv"),
        ("DGX-2", "did you mean dgx2"),
        ("torus4x4", "torus:4x4"),
        ("zzz", "'zzz' is not a topology; 'taccl topo list' shows the shipped ones (dgx1, dgx2,"),
        ("", "'' is not a topology"),
        ("zzz-x2", "a file ends in .json"),
        ("rung:4", "did you mean ring?"),
        ("a10", "did you mean a100?"),
        ("gb200", "did you mean nvl72:1?"),
        ("H800", "did you mean hpn:2?"),
        (
            "v100",
            "'v100' is the GPU of several machines; name one of dgx1, dgx2, ndv2 ('taccl topo list' describes them)",
        ),
        ("v100-x2", "name one of dgx1, dgx2, ndv2"),
        ("a100-x0", "found 0 nodes, at least 1 is needed"),
        ("dgx2-x0", "found 0 nodes, at least 1 is needed"),
        ("dgx1-x2", "dgx1 has no NICs that could join 2 nodes"),
    ],
)
def test_unknown_name_is_answered_with_near_ones_and_where_to_look(name: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        load_topology(name)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("a100", "ndv4"), ("h100", "ndv5"), ("H100", "ndv5"), ("dgx-a100", "ndv4"), ("DGX-H100", "ndv5"), ("mi300x", "mi300x"),
        ("MI250X", "mi250x"), ("a100-x2", "ndv4-x2"), ("dgx-h100-x3", "ndv5-x3"), ("torus:4x4", "torus:4x4"), ("x.json", "x.json"),
    ],
)  # fmt: skip
def test_gpu_of_one_shipped_machine_is_a_name_for_it(gpu: str, name: str) -> None:
    assert catalog.canonical_name(gpu) == name
    if not name.endswith(".json"):
        assert load_topology(gpu) == load_topology(name)


def test_gpu_takes_nodes_like_a_name_and_hides_files_like_one(
    tmp_path: Path, write_json: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json(MACHINE, "h100")
    monkeypatch.chdir(tmp_path)
    assert load_topology("h100", 2).name == "ndv5-x2"
    with pytest.raises(InputError, match="'h100-x2' and 3 nodes contradict each other"):
        load_topology("h100-x2", 3)


def test_profile_of_taccl_is_refused_with_a_remedy(write_json: Callable[..., Path]) -> None:
    profile = {"name": "x", "gpus_per_node": 2, "alpha": 1, "node_betas_list": [1], "node_invbws_list": [2]}
    assert catalog.is_taccl_profile(profile)
    with pytest.raises(InputError, match="give it together with a TACCL sketch"):
        load_topology(str(write_json(profile)), 2)


def test_list_has_every_shipped_file_in_order() -> None:
    entries = list_topologies()
    assert [entry.name for entry in entries] == ["dgx1", "dgx2", "mi250x", "mi300x", "ndv2", "ndv4", "ndv5"]
    assert {entry.name: entry.ranks_per_node for entry in entries} == {
        "dgx1": 8, "dgx2": 16, "mi250x": 16, "mi300x": 8, "ndv2": 8, "ndv4": 8, "ndv5": 8
    }  # fmt: skip
    assert [entry.name for entry in entries if not entry.multi_node] == ["dgx1"]
    assert all(entry.description for entry in entries)


def test_data_of_an_installed_package_is_found_inside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "taccl_py"
    monkeypatch.setattr(catalog, "__file__", str(package / "topology" / "catalog.py"))
    with pytest.raises(InputError, match="the topologies that come with the program are missing; install it again"):
        data_dir("topologies")
    (tmp_path / "site" / "sketches").mkdir(parents=True)
    assert data_dir("sketches") == tmp_path / "site" / "sketches"
    (package / "_data" / "sketches").mkdir(parents=True)
    assert data_dir("sketches") == package / "_data" / "sketches"
