"""``taccl install`` and ``taccl check`` of a directory."""

import importlib.util
import json
from pathlib import Path

import pytest

from taccl_py.execute import taccl_plans
from tests.execute import mscclpp_standin
from tests.lowering.foreign_files import copying_allgather
from tests.verify.msccl.files import ring_allgather, ring_allreduce

REALLY = ("executor", "rccl", "legacy")


@pytest.fixture
def two(folder):
    """Folder with an AllReduce in place and out of it, and a legacy AllGather."""
    (folder / "in").mkdir()
    (folder / "in" / "sum.xml").write_text(ring_allreduce().text(), encoding="utf-8")
    (folder / "in" / "old.xml").write_text(copying_allgather(), encoding="utf-8")
    return folder


def newer_allreduce():
    """Text of the same AllReduce as another algorithm."""
    return ring_allreduce().text().replace('name="test"', 'name="newer"')


def contents(directory):
    return {path.name: path.read_text(encoding="utf-8") for path in directory.iterdir()}


@pytest.mark.parametrize("runtime", REALLY)
def test_what_is_installed_is_good_as_a_directory(taccl, two, runtime):
    ended = taccl("install", "in", "-o", "algos", "--runtime", runtime)
    assert ended.code == 0
    variable = "MSCCL_CONFIG" if runtime == "legacy" else "MSCCL_ALGO_DIR"
    assert f"export {variable}={two}/algos" in ended.out
    assert len(list((two / "algos").glob("all*.xml"))) == 2
    checked = taccl("check", "algos", "--runtime", runtime)
    assert checked.code == 0
    assert "algos: good: 2 files" in checked.out
    assert "allgather of 3 ranks" in checked.out
    assert "1 connection a GPU" in checked.out


@pytest.mark.parametrize("name", ["out", "out/algorithm.xml"])
def test_what_synth_made_for_a_runtime_is_checked_and_installed_for_it(taccl, folder, name):
    """GPUs of AMD have RCCL, which the summary says; a name stands above that."""
    made = taccl("synth", "mi300x", "allgather", "--size", "1KiB", "--engine", "templates", "-o", "out", "--json")
    assert (made.code, made.json["runtime"]) == (0, "rccl")
    assert "for rccl" in taccl("check", name).out
    assert "assumed" not in taccl("check", name).out
    assert "for executor" in taccl("check", name, "--runtime", "executor").out
    ended = taccl("install", name, "-o", "algos")
    assert "export RCCL_MSCCL_ENABLE=1" in ended.out
    assert "1 file for rccl" in ended.err
    (folder / "out/summary.json").write_text("{", encoding="utf-8")
    assert "for executor" in taccl("check", "out/algorithm.xml").out


@pytest.mark.usefixtures("two")
def test_check_and_install_say_which_runtime_they_assume_of_what_is_installed(taccl):
    """Nothing but algorithm files may lie in the folder of a modern runtime; legacy MSCCL's has a configuration."""
    for runtime in REALLY:
        assert taccl("install", "in", "-o", runtime, "--runtime", runtime).code == 0
        assert "assumed" not in taccl("check", runtime, "--runtime", runtime).out
        ended = taccl("check", runtime)
        assert (ended.code, ended.err) == (0, "")
        whole = ended.out.splitlines()[-1]
        guess = "executor is assumed, --runtime names another one"
        assert (guess in whole) == (runtime != "legacy")
        assert ("for legacy" in whole) == (runtime == "legacy")
        if runtime != "legacy":
            (name, *_) = sorted(Path(runtime).iterdir())
            assert guess in taccl("check", name).out
        again = taccl("install", runtime, "-o", f"again-{runtime}")
        assert (guess in again.err) == (runtime != "legacy")
        assert f"for {'legacy' if runtime == 'legacy' else 'executor'}; allgather" in again.err


def test_files_for_several_runtimes_need_a_name(taccl, refuse):
    for runtime in ("rccl", "legacy"):
        words = ("--size", "1KiB", "--engine", "templates", "--runtime", runtime)
        assert taccl("synth", "ring:4", "allgather", *words, "-o", runtime).code == 0
    refuse(2, ["--runtime", "legacy and rccl", "name one"], "install", "rccl", "legacy", "-o", "algos")


def test_a_single_file_for_another_runtime_says_how_to_install_it(taccl):
    words = ("synth", "mi300x", "allgather", "--size", "1KiB", "--engine", "templates", "-o", "one.xml")
    assert "install and check it with --runtime rccl" in taccl(*words).err


@pytest.mark.usefixtures("two")
def test_json_tells_files_and_variables(taccl):
    found = taccl("install", "in/sum.xml", "-o", "algos", "--at", "/opt/my algos/", "--json").json
    assert found["files"] == ["algos/allreduce-0004-both-0000000000000000000-0000000000001048576.xml"]
    assert found["environment"]["MSCCL_ALGO_DIR"] == "/opt/my algos"
    assert (found["connections"], found["notes"]) == (1, [])
    assert (
        "export MSCCL_ALGO_DIR='/opt/my algos'"
        in taccl("install", "in/old.xml", "-o", "b", "--at", "/opt/my algos").out
    )


@pytest.mark.usefixtures("two")
def test_more_can_be_added_later_but_nothing_that_competes(taccl, refuse, folder):
    assert taccl("install", "in/sum.xml", "-o", "algos").code == 0
    assert taccl("install", "in/old.xml", "-o", "algos").code == 0
    assert len(list((folder / "algos").iterdir())) == 2
    (folder / "newer.xml").write_text(newer_allreduce(), encoding="utf-8")
    refuse(2, ["newer.xml", "allreduce from 0 to 1048576 bytes is also done by algos/allreduce", "--replace", "--trim"],
           "install", "newer.xml", "-o", "algos")  # fmt: skip
    refuse(2, ["newer.xml", "cut to nothing", "--replace"], "install", "newer.xml", "-o", "algos", "--trim")
    assert len(list((folder / "algos").iterdir())) == 2
    assert taccl("install", "newer.xml", "-o", "algos", "--replace").code == 0
    assert [path.name[:9] for path in (folder / "algos").iterdir()] == ["allreduce"]


@pytest.mark.parametrize("options", [(), ("--trim",), ("--replace",)])
@pytest.mark.parametrize("runtime", REALLY)
def test_installing_the_same_again_changes_nothing(taccl, two, runtime, options):
    command = ("install", "in", "-o", "algos", "--runtime", runtime)
    first = taccl(*command)
    before = contents(two / "algos")
    again = taccl(*command, *options)
    assert (again.code, again.out) == (0, first.out), again.err
    assert contents(two / "algos") == before
    assert ("in/sum.xml is the same as algos/allreduce" in again.err) == (options != ("--replace",))


def test_what_was_trimmed_can_be_trimmed_again(taccl, two):
    (two / "more.xml").write_text(newer_allreduce().replace("1048576", "2097152"), encoding="utf-8")
    command = ("install", "in/sum.xml", "more.xml", "-o", "algos", "--trim")
    assert taccl(*command).code == 0
    before = contents(two / "algos")
    assert taccl(*command).code == 0
    assert contents(two / "algos") == before


def test_a_named_file_that_another_named_one_leaves_nothing_of_is_an_error(taccl, refuse, two):
    (two / "newer.xml").write_text(newer_allreduce(), encoding="utf-8")
    refuse(2, ["newer.xml", "also done by in/sum.xml", "--trim"], "install", "in/sum.xml", "newer.xml", "-o", "algos")
    refuse(2, ["newer.xml", "cut to nothing", "name it before"],
           "install", "in/sum.xml", "newer.xml", "-o", "algos", "--trim")  # fmt: skip
    assert not (two / "algos").exists()
    assert "--replace" not in taccl("install", "in/sum.xml", "newer.xml", "-o", "algos").err


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("options", [(), ("--replace",)])
def test_a_directory_of_the_legacy_runtime_becomes_one_of_another_whose_scan_nothing_stops(taccl, options):
    assert taccl("install", "in/old.xml", "-o", "algos", "--runtime", "legacy").code == 0
    assert taccl("install", "in/sum.xml", "-o", "algos", *options).code == 0
    assert taccl("check", "algos").code == 0


def test_a_collective_that_the_legacy_runtime_calls_custom_is_installed(taccl, folder):
    assert taccl("synth", "ring:5", "gather", "--root", 2, "--engine", "templates", "-o", "gather.xml").code == 0
    ended = taccl("install", "gather.xml", "-o", "algos", "--runtime", "legacy")
    assert ended.code == 0, ended.err
    assert 'coll="custom"' in next((folder / "algos").glob("gather*.xml")).read_text(encoding="utf-8")
    assert taccl("check", "algos", "--runtime", "legacy", "--collective", "gather", "--root", 2).code == 0


def test_trimmed_files_are_told(taccl, two):
    text = ring_allreduce().text().replace('maxBytes="1048576"', 'maxBytes="2097152"')
    (two / "more.xml").write_text(text, encoding="utf-8")
    ended = taccl("install", "in/sum.xml", "more.xml", "-o", "algos", "--trim")
    assert ended.code == 0
    assert "more.xml is cut to 1048577..2097152" in ended.err


@pytest.mark.usefixtures("two")
def test_a_file_of_somebody_else_is_not_touched(refuse, folder):
    (folder / "algos").mkdir()
    (folder / "algos" / "README").write_text("mine", encoding="utf-8")
    refuse(2, ["algos/README", "no algorithm file", "take it away"], "install", "in", "-o", "algos")
    (folder / "algos" / "README").unlink()
    (folder / "algos" / "README").symlink_to(folder / "in", target_is_directory=True)
    refuse(2, ["algos/README", "no algorithm file", "take it away"], "install", "in", "-o", "algos")


def test_bad_sources_are_named(refuse, folder):
    (folder / "empty").mkdir()
    (folder / "bad.xml").write_text("hello", encoding="utf-8")
    refuse(2, ["empty", "holds no XML files"], "install", "empty", "-o", "algos")
    refuse(2, ["nothing.xml", "no such file"], "install", "nothing.xml", "-o", "algos")
    refuse(2, ["bad.xml", "line 1"], "install", "bad.xml", "-o", "algos")


def test_check_names_what_is_wrong_with_a_directory(taccl, folder):
    (folder / "algos").mkdir()
    for name in ("a.xml", "b.xml"):
        (folder / "algos" / name).write_text(ring_allgather().text(), encoding="utf-8")
    (folder / "algos" / ".b.xml.swp").write_text("vim", encoding="utf-8")
    (folder / "algos" / "taccl").mkdir()
    ended = taccl("check", "algos", "--json")
    assert ended.code == 4
    *files, whole = ended.json["files"]
    assert [file["file"] for file in files] == ["algos/a.xml", "algos/b.xml"]
    assert all(file["good"] for file in files)
    assert [(v["where"], v["rule"]) for v in whole["violations"]] == [
        (".b.xml.swp", "stray-file"),
        ("b.xml", "overlap"),
    ]


def test_check_tells_of_a_directory_whether_its_bad_files_keep_the_others_from_being_loaded(taccl, folder):
    (folder / "algos").mkdir()
    broken = ring_allgather()
    broken.step(0, 1, 0)["dstoff"] = 1
    good, wrong = ring_allgather().text(), broken.text()
    (folder / "algos" / "b.xml").write_text(good, encoding="utf-8")
    for text, told in (
        (good.replace(' outofplace="1"', ""), "algos: bad: a.xml: MSCCL executor for NCCL ends its scan at it"),
        (good.replace(' cnt="1"', "", 1), "algos: bad: a.xml: MSCCL executor for NCCL refuses it"),
        (wrong, "algos: good: 1 file for executor (1 bad, not counted); allgather of 3"),
    ):
        (folder / "algos" / "a.xml").write_text(text, encoding="utf-8")
        ended = taccl("check", "algos")
        assert ended.code == 4
        assert [line.split(": ")[1] for line in ended.out.splitlines()][:2] == ["bad", "good"]
        assert ended.out.splitlines()[2].startswith(told), ended.out


@pytest.mark.usefixtures("plans")
def test_what_was_asked_for_counts_for_all_files_of_a_directory(taccl):
    for source, folder, runtime in (("algorithm.xml", "algos", "executor"), ("small.json", "cache", "mscclpp")):
        assert taccl("install", source, "-o", folder, "--runtime", runtime).code == 0
        assert taccl("check", folder, "--collective", "allgather").code == 0
        assert "[collective]" in taccl("check", folder, "--collective", "reduce").out
        assert "[wrong-root]" in taccl("check", folder, "--root", 1).out


def test_check_shows_gaps(taccl, folder):
    (folder / "algos").mkdir()
    for low, high in ((1024, 4096), (8192, 16384)):
        text = ring_allgather().text().replace('minBytes="0" maxBytes="1048576"', f'minBytes="{low}" maxBytes="{high}"')
        (folder / "algos" / f"{low}.xml").write_text(text, encoding="utf-8")
    out = taccl("check", "algos").out.splitlines()[-1]
    assert "in place and out of place: 1KiB to 4KiB, then 8KiB to 16KiB" in out


@pytest.fixture
def plans(taccl, files):
    """Plans of the same AllGather for sizes that overlap."""
    for name, low, high in (("small.json", "1KiB", "64KiB"), ("all.json", "1KiB", "1MiB")):
        ended = taccl(
            "lower", "schedule.json", "--to", "mscclpp-json", "--min-bytes", low, "--max-bytes", high, "-o", name
        )
        assert ended.code == 0, ended.err
    return files


def sizes_in(folder):
    return [
        (plan["min_message_size"], plan["max_message_size"])
        for plan in (json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json")))
    ]


def test_plans_go_beside_the_module_that_registers_them(taccl, plans):
    ended = taccl("install", "small.json", "-o", "made", "--runtime", "mscclpp")
    assert ended.code == 0, ended.err
    first, *lines = ended.out.splitlines()
    assert first == f"export PYTHONPATH={plans}/made${{PYTHONPATH:+:$PYTHONPATH}}"
    assert lines[0].startswith("# LD_PRELOAD=")
    assert lines[0].endswith("libmscclpp_nccl.so torchrun --nnodes 1 --nproc-per-node 4 -m taccl_plans train.py")
    assert sorted(path.name for path in (plans / "made").iterdir()) == ["plans", "taccl_plans.json", "taccl_plans.py"]
    (path,) = (plans / "made" / "plans").iterdir()
    assert taccl("check", str(path)).code == 0
    assert (plans / "made" / "taccl_plans.py").read_bytes() == Path(taccl_plans.__file__).read_bytes()
    again = ("install", "small.json", "-o", "made", "--runtime", "mscclpp", "--replace", "--at", "/opt/x/", "--json")
    found = taccl(*again).json
    assert found["environment"] == {"PYTHONPATH": "/opt/x"}
    assert [Path(name).name for name in found["files"]] == [path.name, "taccl_plans.json", "taccl_plans.py"]
    assert found["launch"][0] == lines[0].removeprefix("# ")


def test_what_is_installed_is_registered_and_chosen(taccl, plans, monkeypatch):
    """The written module, imported from where it is, on a stand-in of MSCCL++."""
    mscclpp_standin.put_in_place(monkeypatch)
    more = (
        "lower",
        "schedule.json",
        "--to",
        "mscclpp-json",
        "--placement",
        "out",
        "-o",
        "out.json",
        "--max-bytes",
        "1MiB",
    )
    assert taccl(*more, "--min-bytes", "1KiB").code == 0
    assert (
        taccl("install", "small.json", "all.json", "out.json", "-o", "made", "--runtime", "mscclpp", "--trim").code == 0
    )
    spec = importlib.util.spec_from_file_location("installed_plans", plans / "made" / "taccl_plans.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.register(2, 4)
    library, request = mscclpp_standin.Library(), mscclpp_standin.Request("allgather", 1 << 10, rank=2)
    found = {}
    for each_bytes in (1 << 10, 16 << 10, 32 << 10, 1 << 20):
        request.message_size = each_bytes
        for address in (request.output_buffer + 2 * each_bytes, 0):
            request.input_buffer = address
            found[each_bytes, address == 0] = library.run(request)
    small, rest, out = ("in-00000000000000001024", "in-00000000000000065537", "out-00000000000000001024")
    chosen = {call: name and name.removeprefix("allgather-0004-").rpartition("-")[0] for call, name in found.items()}
    assert chosen == {
        (1 << 10, False): small, (16 << 10, False): small, (32 << 10, False): rest, (1 << 20, False): None,
        (1 << 10, True): out, (16 << 10, True): out, (32 << 10, True): out, (1 << 20, True): None,
    }  # fmt: skip
    with pytest.raises(module.PlanError, match="no plan for 8 ranks, only for 4"):
        module.register(2, 8)


def test_the_plan_in_a_folder_of_synth_is_installed(taccl, folder):
    assert taccl("synth", "ring:4", "allgather", "--engine", "templates", "--runtime", "mscclpp", "-o", "out").code == 0
    assert taccl("install", "out", "-o", "made", "--runtime", "mscclpp").code == 0
    table = json.loads((folder / "made" / "taccl_plans.json").read_text(encoding="utf-8"))
    assert [plan["collective"] for plan in table["plans"]] == ["allgather"]
    (folder / "out" / "plan.json").unlink()
    ended = taccl("install", "out", "-o", "made", "--runtime", "mscclpp")
    assert (ended.code, ended.sentence) == (2, "out: holds no plans; name a directory that does")


def test_plans_of_several_roots_can_be_installed(taccl, folder):
    for root in (0, 2):
        assert taccl("synth", "full:4", "broadcast", "--root", root, "--engine", "templates", "-o", f"{root}").code == 0
        assert taccl("lower", f"{root}/schedule.json", "--to", "mscclpp-json", "-o", f"{root}.json").code == 0
    assert taccl("install", "0.json", "2.json", "-o", "made", "--runtime", "mscclpp").code == 0
    table = json.loads((folder / "made" / "taccl_plans.json").read_text(encoding="utf-8"))
    assert [plan["root"] for plan in table["plans"]] == [0, 2]
    assert taccl("check", "made").code == 0


@pytest.mark.usefixtures("plans")
def test_what_mscclpp_does_not_look_for_by_itself_is_refused(refuse):
    refuse(
        2,
        ["--default-names", "MSCCL++ 0.10 looks by itself only for an AllReduce of 16 ranks on nodes of 8"],
        "install", "small.json", "-o", "made", "--runtime", "mscclpp", "--default-names", "0.10",
    )  # fmt: skip
    refuse(
        2, ["--default-names", "only for --runtime mscclpp"], "install", "x.xml", "-o", "y", "--default-names", "0.9"
    )


def test_plans_of_an_earlier_version_are_taken_over(taccl, plans):
    """It wrote them where MSCCL++ never looked."""
    assert taccl("install", "small.json", "-o", "made", "--runtime", "mscclpp").code == 0
    (plans / "made" / "plans").rename(plans / "made" / "default")
    (plans / "made" / "default" / "allreduce_2nodes_1K_64K.json").write_text("{}", encoding="utf-8")
    assert taccl("install", "all.json", "-o", "made", "--runtime", "mscclpp", "--trim").code == 0
    assert sizes_in(plans / "made" / "plans") == [(1024, 65536), (65537, 1048576)]
    assert [path.name for path in (plans / "made" / "default").iterdir()] == ["allreduce_2nodes_1K_64K.json"]


@pytest.mark.usefixtures("two")
def test_versions_that_do_not_load_the_files_are_warned_of(taccl):
    ended = taccl("install", "in/sum.xml", "-o", "r", "--runtime", "rccl")
    assert "loaded by packages of ROCm 7.2 and earlier" in ended.err
    assert "warning: RCCL of ROCm 7.13 and later has no MSCCL" in ended.err
    assert "warning" not in ended.out
    found = taccl("install", "in/sum.xml", "-o", "r", "--runtime", "rccl", "--json").json
    assert any("7.13" in warning for warning in found["warnings"])
    assert found["loaded_by"].startswith("packages of ROCm 7.2")
    assert "NVIDIA's own NCCL loads no algorithm files" in taccl("install", "in/sum.xml", "-o", "e").err


def test_plans_for_the_same_sizes_are_refused_or_cut(taccl, plans):
    ended = taccl("install", "small.json", "all.json", "-o", "cache", "--runtime", "mscclpp")
    assert ended.code == 2
    assert "from 1024 to 65536 bytes is also done by small.json" in ended.sentence
    assert not (plans / "cache").exists()
    assert taccl("install", "small.json", "-o", "cache", "--runtime", "mscclpp").code == 0
    ended = taccl("install", "all.json", "-o", "cache", "--runtime", "mscclpp", "--trim")
    assert ended.code == 0
    assert "all.json is cut to 65537..1048576" in ended.err
    assert sizes_in(plans / "cache" / "plans") == [(1024, 65536), (65537, 1048576)]
    assert taccl("install", "all.json", "-o", "cache", "--runtime", "mscclpp", "--replace").code == 0
    assert sizes_in(plans / "cache" / "plans") == [(1024, 1048576)]


def test_of_a_plan_that_is_cut_no_part_stays_that_is_never_run(taccl, plans):
    """From 65537 to 65551 bytes nothing can be shared out in aligned chunks."""
    plan = json.loads((plans / "small.json").read_text(encoding="utf-8"))
    (plans / "more.json").write_text(json.dumps(plan | {"max_message_size": 65551}), encoding="utf-8")
    ended = taccl("install", "small.json", "more.json", "-o", "cache", "--runtime", "mscclpp", "--trim")
    assert ended.code == 0, ended.err
    assert sizes_in(plans / "cache" / "plans") == [(1024, 65536)]
    assert taccl("check", "cache").code == 0


def test_a_plan_is_cut_to_nothing_if_it_is_left_no_size_that_the_runtime_runs(taccl, refuse, plans):
    """The runtime runs an AllGather of 4 ranks at multiples of four aligned chunks, and 65537 is none."""
    for name, most in (("odd", 65537), ("whole", 65536 + 64)):
        plan = json.loads((plans / "small.json").read_text(encoding="utf-8"))
        text = json.dumps(plan | {"num_threads_per_block": 512, "max_message_size": most})
        (plans / f"{name}.json").write_text(text, encoding="utf-8")
    command = ("install", "small.json", "-o", "cache", "--runtime", "mscclpp", "--trim")
    refuse(2, ["odd.json", "cut to nothing"], *command, "odd.json")
    assert taccl(*command, "whole.json").code == 0
    assert sizes_in(plans / "cache" / "plans") == [(1024, 65536), (65537, 65600)]


def test_plans_that_are_there_already_change_nothing_and_others_are_not_cut_to_nothing(taccl, refuse, plans):
    command = ("install", "small.json", "-o", "cache", "--runtime", "mscclpp")
    assert taccl(*command).code == 0
    before = contents(plans / "cache" / "plans")
    for options in ((), ("--trim",)):
        again = taccl(*command, *options)
        assert again.code == 0
        assert "small.json is the same as cache/plans/allgather" in again.err
    text = (plans / "small.json").read_text(encoding="utf-8")
    plan = json.loads(text)
    (plans / "newer.json").write_text(json.dumps(plan | {"num_threads_per_block": 512}), encoding="utf-8")
    newer = ("install", "newer.json", "-o", "cache", "--runtime", "mscclpp")
    refuse(2, ["newer.json", "also done by cache/plans", "--replace", "--trim"], *newer)
    refuse(2, ["newer.json", "cut to nothing", "--replace"], *newer, "--trim")
    assert contents(plans / "cache" / "plans") == before
    assert taccl(*newer, "--replace").code == 0
    assert contents(plans / "cache" / "plans") != before


def test_what_is_no_good_plan_is_not_installed(taccl, plans):
    assert taccl("install", "schedule.json", "-o", "cache", "--runtime", "mscclpp").code == 2
    text = (plans / "small.json").read_text(encoding="utf-8")
    (plans / "small.json").write_text(text.replace('"name": "signal"', '"name": "rlxsignal"', 1), encoding="utf-8")
    assert taccl("install", "small.json", "-o", "cache", "--runtime", "mscclpp").code == 4
    assert not (plans / "cache").exists()


def test_a_folder_of_plans_is_verified_as_a_whole(taccl, plans):
    assert taccl("install", "small.json", "-o", "cache", "--runtime", "mscclpp").code == 0
    for name in ("cache", "cache/plans"):
        checked = taccl("check", name)
        assert checked.code == 0, checked.out
        assert "cache/plans: good: 1 plan for mscclpp" in checked.out
    folder = plans / "cache" / "plans"
    (folder / "all.json").write_text((plans / "all.json").read_text(encoding="utf-8"), encoding="utf-8")
    checked = taccl("check", "cache")
    assert checked.code == 4
    assert "from 1024 to 65536 bytes all.json is for the same calls" in checked.out
    (folder / "all.json").write_text("[]", encoding="utf-8")
    assert "[stray-file]" in taccl("check", "cache").out
    (folder / "all.json").write_text((plans / "schedule.json").read_text(encoding="utf-8"), encoding="utf-8")
    told = "all.json: it is no MSCCL++ plan (gpus: is missing), and this folder is read as one of plans; move it to another folder"
    assert told in taccl("check", "cache").out


def test_a_table_that_says_other_than_the_plans_is_an_error(taccl, plans):
    assert taccl("install", "small.json", "-o", "made", "--runtime", "mscclpp").code == 0
    table, (plan,) = plans / "made" / "taccl_plans.json", (plans / "made" / "plans").iterdir()
    assert "made/taccl_plans.json: good" in taccl("check", "made").out
    text = table.read_text(encoding="utf-8")
    table.write_text(text.replace("65536,", "65600,"), encoding="utf-8")
    checked = taccl("check", "made")
    assert checked.code == 4
    assert "says max_bytes 65600 of plans/allgather" in checked.out
    table.write_text(text, encoding="utf-8")
    more = json.loads(plan.read_text(encoding="utf-8")) | {
        "name": "more",
        "min_message_size": 65552,
        "max_message_size": 1 << 20,
    }
    (plans / "made" / "plans" / "more.json").write_text(json.dumps(more), encoding="utf-8")
    assert "does not name plans/more.json, so nobody registers it" in taccl("check", "made").out
    table.write_text("{", encoding="utf-8")
    assert "is no table of plans" in taccl("check", "made").out


@pytest.mark.usefixtures("plans")
def test_plans_are_told_from_what_other_commands_need(taccl):
    ended = taccl("install", "small.json", "-o", "algos")
    assert (ended.code, ended.sentence.startswith("small.json: is JSON, and MSCCL executor for NCCL loads XML")) == (
        2,
        True,
    )
    ended = taccl("lower", "small.json", "-o", "a.xml")
    assert (ended.code, ended.sentence.startswith("small.json: is a plan for MSCCL++")) == (2, True)


@pytest.mark.usefixtures("folder")
def test_sizes_left_to_nccl_have_no_file(taccl, refuse):
    made = taccl(
        "synth", "full:4", "allgather", "--size", "1MiB", "--min-bytes", "1KiB", "--max-bytes", "4MiB", "-o", "one.xml"
    )
    assert made.code == 0, made.err
    ended = taccl("install", "one.xml", "-o", "left", "--leave", "64KiB:1MiB", "--json")
    assert ended.code == 0, ended.err
    ranges = sorted(tuple(map(int, Path(name).stem.split("-")[-2:])) for name in ended.json["files"])
    assert ranges == [(1 << 10, (64 << 10) - 1), ((1 << 20) + 1, 4 << 20)]
    assert "left to NCCL" in ended.json["notes"][0]
    other = taccl("install", "one.xml", "-o", "all", "--leave", "allreduce:64KiB:1MiB", "--json")
    assert (other.code, len(other.json["files"])) == (0, 1)
    refuse(2, ["--leave", "nothing is left"], "install", "one.xml", "-o", "none", "--leave", "1B:1GiB")
    refuse(2, ["--leave"], "install", "one.xml", "-o", "none", "--leave", "allthings:1KiB:1MiB")
