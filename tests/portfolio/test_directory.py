"""What is written for a runtime to load: disjoint sizes, names in order, variables, the legacy configuration."""

import pytest

from taccl_py.errors import InputError, InvalidArtifact, LoweringError
from taccl_py.lowering.msccl_xml import parse_xml
from taccl_py.portfolio.directory import Offer, plan_installation, read_directory
from taccl_py.runtimes import EXECUTOR, LEGACY, RCCL
from tests.verify.msccl.files import direct_alltoall, ring_allgather, ring_allreduce


def offer(low, high, make=ring_allreduce, source="a.xml", runtime=EXECUTOR, **changes):
    file = make()
    file.attributes.update(minBytes=low, maxBytes=high, **changes)
    return Offer(parse_xml(file.text(), source, runtime), source)


def ranges(installation, runtime=EXECUTOR):
    programs = [parse_xml(text, name, runtime) for name, text in installation.texts.items() if name.startswith("all")]
    return [(program.min_bytes, program.max_bytes) for program in programs]


def test_names_sort_by_collective_and_size_whatever_the_order():
    plan = plan_installation(
        [offer(4096, 1 << 30), offer(64, 4095), offer(0, 0, ring_allgather)], EXECUTOR, "/algos", trim=False
    )
    assert list(plan.texts) == sorted(plan.texts)
    assert [name[:19] for name in plan.texts] == ["allgather-0003-both", "allreduce-0004-both", "allreduce-0004-both"]
    assert ranges(plan)[1:] == [(64, 4095), (4096, 1 << 30)]
    assert plan.environment == {"NCCL_MSCCL_ENABLE": "1", "MSCCL_ALGO_DIR": "/algos"}
    assert plan.notes == ()


def test_files_for_the_same_sizes_are_refused_with_both_names():
    with pytest.raises(InputError, match=r"b\.xml: allreduce from 64 to 100 bytes is also done by a\.xml.*--trim"):
        plan_installation([offer(64, 100), offer(0, 0, source="b.xml")], EXECUTOR, "/algos", trim=False)


@pytest.mark.parametrize(
    ("second", "left"),
    [
        ((0, 0), [(0, 999), (2001, (1 << 63) - 1)]),
        ((1500, 3000), [(2001, 3000)]),
        ((500, 1500), [(500, 999)]),
        ((1100, 1200), []),
        ((5000, 6000), [(5000, 6000)]),
        ((1000, 2003), []),
    ],
)
def test_trimming_keeps_what_is_named_first_and_leaves_the_rest_of_the_others(second, left):
    """Four chunks share out no size from 2001 to 2003."""
    plan = plan_installation([offer(1000, 2000), offer(*second, source="b.xml")], EXECUTOR, "/algos", trim=True)
    assert sorted(ranges(plan)) == sorted([(1000, 2000), *left])
    assert len(plan.notes) == ([second] != left)


def test_only_placements_that_both_serve_compete():
    offers = [offer(64, 100, outofplace=0), offer(64, 100, inplace=0)]
    assert len(plan_installation(offers, EXECUTOR, "/algos", trim=False).texts) == 2


def test_rccl_must_be_made_to_use_them():
    plan = plan_installation([offer(64, 100, direct_alltoall)], RCCL, "/algos", trim=False)
    assert plan.environment["RCCL_MSCCL_FORCE_ENABLE"] == "1"


def test_the_legacy_runtime_gets_a_configuration_with_ends_outside_of_the_range():
    offers = [offer(64, 101, runtime=LEGACY, outofplace=0), offer(101, 0x7FFFFFFF, runtime=LEGACY, outofplace=0)]
    plan = plan_installation(offers, LEGACY, "/algos", trim=False)
    first, second, config = plan.texts
    assert config == "msccl-config.xml"
    assert plan.texts[config].splitlines() == [
        "<msccl_algos>",
        f'  <load path="/algos/{first}" minbytes="64" maxbytes="101" proto="LL"/>',
        f'  <load path="/algos/{second}" minbytes="101" maxbytes="2147483647" proto="LL"/>',
        "</msccl_algos>",
    ]
    assert plan.environment == {"MSCCL_CONFIG": "/algos/msccl-config.xml", "NCCL_ALGO": "MSCCL,RING,TREE"}


def test_more_files_than_the_runtime_loads_are_refused():
    offers = [offer(64 << k, (64 << (k + 1)) - 1, runtime=EXECUTOR, outofplace=0) for k in range(5)]
    with pytest.raises(LoweringError, match="5 files are too many, as legacy MSCCL loads at most 4"):
        plan_installation(offers, LEGACY, "/algos", trim=False)


def test_what_the_verifier_refuses_is_not_installed():
    file = ring_allgather()
    file.step(0, 1, 0)["dstoff"] = 2
    with pytest.raises(InvalidArtifact, match="wrong-result"):
        plan_installation([Offer(parse_xml(file.text(), "a.xml"), "a.xml")], EXECUTOR, "/algos", trim=False)
    with pytest.raises(InputError, match="no algorithm to install"):
        plan_installation([], EXECUTOR, "/algos", trim=False)


def test_the_legacy_runtime_loads_what_its_configuration_names(tmp_path):
    (tmp_path / "msccl-config.xml").write_text(
        '<msccl_algos>\n  <load path="/x/a.xml" proto="LL"/>\n  <load path="/x/b.xml" proto="LL"/>\n</msccl_algos>\n'
    )
    (tmp_path / "a.xml").write_text(ring_allgather().text())
    (tmp_path / "notes.txt").write_text("not loaded")
    contents = read_directory(tmp_path, LEGACY)
    assert [file.name for file in contents.files] == ["a.xml"]
    assert [(violation.where, violation.rule) for violation in contents.violations] == [("b.xml", "missing-file")]
    assert [file.name for file in read_directory(tmp_path, EXECUTOR).files] == [
        "a.xml",
        "msccl-config.xml",
        "notes.txt",
    ]


def test_a_link_to_a_folder_is_a_file_to_a_scan_and_a_folder_is_none(tmp_path):
    (tmp_path / "..2024").mkdir()
    (tmp_path / "..2024" / "a.xml").write_text(ring_allgather().text())
    (tmp_path / "..data").symlink_to("..2024")
    (tmp_path / "a.xml").symlink_to("..data/a.xml")
    files = read_directory(tmp_path, EXECUTOR).files
    assert [(file.name, file.text is None) for file in files] == [("..data", True), ("a.xml", False)]
