"""``taccl lower``: a schedule for every runtime, placement, protocol and number of instances."""

import itertools
import json

import pytest

from taccl_py.lowering.msccl_xml import parse_xml
from taccl_py.lowering.nccl import read_channels
from taccl_py.runtimes import RUNTIMES
from taccl_py.units import format_size
from taccl_py.verify.msccl import verify_program
from tests.lowering.chakra.decode import decode
from tests.lowering.chakra.replay import replay_ns

KEYS = {
    "files", "makespan_us", "replay_us", "runtime", "protocol", "threadblocks", "threadblock_steps", "channels",
    "in_place", "out_of_place", "min_bytes", "max_bytes", "notes",
}  # fmt: skip
COLLECTIVES = ("allgather", "alltoall", "allreduce", "reducescatter", "broadcast", "gather")


@pytest.fixture(scope="session")
def schedules(tmp_path_factory):
    """Texts of small schedules, by collective."""
    from taccl_py.cli import main

    folder = tmp_path_factory.mktemp("schedules")
    texts = {}
    for collective in COLLECTIVES:
        path = folder / f"{collective}.json"
        with pytest.raises(SystemExit, match="0"):
            main(["synth", "ring:3", collective, "--time-limit", "1", "-o", str(path)])
        texts[collective] = path.read_text(encoding="utf-8")
    return texts


@pytest.mark.parametrize(
    ("runtime", "placement", "instances"), list(itertools.product(RUNTIMES, ("in", "out", "both"), (1, 2)))
)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_runtime_placement_and_number_of_instances(
    taccl, folder, schedules, collective, runtime, placement, instances
):
    (folder / "s.json").write_text(schedules[collective], encoding="utf-8")
    ended = taccl("lower", "s.json", "--runtime", runtime, "--placement", placement, "--instances", instances, "-o", "a.xml",
                  "--json")  # fmt: skip
    if (collective, runtime, placement) == ("alltoall", "legacy", "in"):
        assert ended.code == 5
        return
    assert ended.code == 0, ended.err
    record = ended.json
    program = parse_xml((folder / "a.xml").read_text(encoding="utf-8"), "a.xml", RUNTIMES[runtime])
    assert set(record) == KEYS
    assert record["files"] == ["a.xml"]
    assert (record["in_place"], record["out_of_place"]) == (program.in_place, program.out_of_place)
    assert record["threadblocks"] == program.num_threadblocks
    assert record["replay_us"] > 0
    text = (folder / "a.xml").read_text(encoding="utf-8")
    assert not verify_program(text, RUNTIMES[runtime], kind=program.kind).violations


@pytest.mark.parametrize("placement", ["in", "out", "both"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_plan_for_mscclpp_is_one_that_its_verifier_accepts(taccl, folder, schedules, collective, placement):
    (folder / "s.json").write_text(schedules[collective], encoding="utf-8")
    ended = taccl("lower", "s.json", "--to", "mscclpp-json", "--placement", placement, "-o", "plan.json", "--json")
    assert ended.code == 0, ended.err
    record, plan = ended.json, json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    assert set(record) == KEYS - {"replay_us"} | {"unit_bytes"}
    both_in = placement == "both" and collective != "alltoall"
    assert record["in_place"] is plan["inplace"] is (placement == "in" or both_in)
    assert record["threadblocks"] == max(len(gpu["threadblocks"]) for gpu in plan["gpus"])
    checked = taccl("check", "plan.json")
    assert checked.code == 0, checked.out
    assert f"{collective} for mscclpp, 3 ranks" in checked.out


@pytest.mark.parametrize(
    ("option", "code", "says"),
    [
        (("--runtime", "rccl"), 2, "--runtime: is a runtime for XML"),
        (("--protocol", "LL128"), 2, "--protocol: plans for MSCCL++ have protocol Simple or LL, found LL128"),
        (("--max-bytes", "1TiB"), 5, "MSCCL++ can run this plan from"),
    ],
)
def test_what_a_plan_cannot_have_is_refused(taccl, files, option, code, says):
    ended = taccl("lower", "schedule.json", "--to", "mscclpp-json", *option, "-o", "plan.json")
    assert ended.code == code
    assert says in ended.sentence
    assert not (files / "plan.json").exists()


@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128"])
def test_a_protocol_that_is_asked_for_is_used(taccl, files, protocol):
    record = taccl("lower", "schedule.json", "--protocol", protocol, "-o", "a.xml", "--json").json
    assert record["protocol"] == protocol
    assert f'proto="{protocol}"' in (files / "a.xml").read_text(encoding="utf-8")


def test_a_dash_is_stdout_and_nothing_else_is_printed(taccl, files):
    ended = taccl("lower", "schedule.json", "-o", "-")
    assert ended.err == ""
    taccl("lower", "schedule.json", "-o", "a.xml")
    assert ended.out == (files / "a.xml").read_text(encoding="utf-8")


@pytest.mark.usefixtures("files")
def test_stdout_has_no_room_for_json_beside_the_file(refuse):
    refuse(2, ["--json", "leave one of the two out"], "lower", "schedule.json", "-o", "-", "--json")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("size", "runs"), [("1MiB", True), ("1000016", False)])
def test_a_plan_that_does_not_run_at_the_size_of_its_schedule_says_so(taccl, size, runs):
    """The chunks of a plan are multiples of 16 bytes."""
    assert taccl("synth", "ring:4", "allgather", "--size", size, "--engine", "templates", "-o", "s.json").code == 0
    ended = taccl("lower", "s.json", "--to", "mscclpp-json", "-o", "plan.json")
    unit = taccl("lower", "s.json", "--to", "mscclpp-json", "-o", "plan.json", "--json").json["unit_bytes"]
    note = f"note: the runtime runs the plan at multiples of {unit} bytes, and not at the schedule's {size}"
    assert ended.err.splitlines()[1:] == ([] if runs else [note])
    assert f"used for multiples of {format_size(unit)}" in taccl("check", "plan.json").out


@pytest.mark.usefixtures("files")
def test_what_was_written_is_said_on_stderr(taccl):
    ended = taccl("lower", "schedule.json", "-o", "a.xml")
    assert ended.out == ""
    assert ended.err.startswith("wrote a.xml: ")
    assert ended.err.count("\n") == 1


def test_a_name_is_kept(taccl, files):
    taccl("lower", "schedule.json", "--name", "my-ring.4", "-o", "a.xml")
    assert parse_xml((files / "a.xml").read_text(encoding="utf-8"), "a.xml", RUNTIMES["executor"]).name == "my-ring.4"


def test_a_name_is_made_of_collective_and_machine(taccl, files):
    taccl("lower", "schedule.json", "-o", "a.xml")
    name = parse_xml((files / "a.xml").read_text(encoding="utf-8"), "a.xml", RUNTIMES["executor"]).name
    assert name == "allgather-ring-4"


def test_directories_are_made(taccl, files):
    assert taccl("lower", "schedule.json", "-o", "deep/er/a.xml").code == 0
    assert (files / "deep/er/a.xml").is_file()


def test_a_directory_in_place_of_the_file_is_refused(refuse, files):
    (files / "a.xml").mkdir()
    refuse(2, ["a.xml", "directory"], "lower", "schedule.json", "-o", "a.xml")


@pytest.mark.usefixtures("files")
def test_an_xml_file_is_no_schedule(refuse):
    words = ["algorithm.xml: is XML, and a schedule (JSON) is needed here", "name the schedule"]
    refuse(2, words, "lower", "algorithm.xml", "-o", "a.xml")
    refuse(2, words, "report", "algorithm.xml", "-o", "a.md")
    refuse(
        2,
        ["algorithm.xml", "is XML, and JSON is needed here"],
        "synth",
        "ring:4",
        "gather",
        "--sketch",
        "algorithm.xml",
    )


@pytest.mark.usefixtures("files")
def test_a_topology_is_no_schedule(refuse, taccl):
    taccl("topo", "show", "ring:4", "-o", "ring.json")
    refuse(2, ["ring.json", "format", "taccl-schedule"], "lower", "ring.json", "-o", "a.xml")


@pytest.mark.usefixtures("files")
def test_lowering_says_how_long_schedule_and_program_take(taccl):
    record = taccl("lower", "schedule.json", "-o", "a.xml", "--json").json
    assert record["makespan_us"] == pytest.approx(11.0)
    assert record["replay_us"] == pytest.approx(11.0)
    assert "replayed 11 us (schedule 11 us)" in taccl("lower", "schedule.json", "-o", "a.xml").err


def test_one_rank_of_a_group_schedule_is_lowered_on_demand(taccl, folder):
    assert taccl("replicate", "torus:4x4", "allgather", "-o", "group.json").code == 0
    assert taccl("lower", "group.json", "-o", "all.xml").code == 0
    assert taccl("check", "all.xml").code == 0
    ended = taccl("lower", "group.json", "--rank", "5", "-o", "rank5.xml")
    assert ended.code == 0
    whole, part = ((folder / name).read_text() for name in ("all.xml", "rank5.xml"))
    begin, end = whole.index('<gpu id="5"'), whole.index('<gpu id="6"')
    assert whole[begin:end] in part
    assert part.count("<gpu ") == 16
    assert len(part) < len(whole) / 8


@pytest.mark.parametrize("form", [{"separators": (",", ":")}, {"sort_keys": True}, {"indent": 9}], ids=str)
def test_a_group_schedule_is_known_in_every_form_of_json(taccl, folder, form):
    assert taccl("replicate", "ring:4", "allgather", "-o", "group.json").code == 0
    value = json.loads((folder / "group.json").read_text())
    (folder / "other.json").write_text(json.dumps(value, **form))
    assert [taccl("lower", f"{name}.json", "-o", f"{name}.xml").code for name in ("group", "other")] == [0, 0]
    assert (folder / "other.xml").read_text() == (folder / "group.xml").read_text()
    assert taccl("check", "other.json").out.startswith("other.json: good: allgather group schedule")


def test_one_rank_needs_a_group_schedule_that_has_it(taccl):
    assert taccl("replicate", "ring:4", "allgather", "-o", "group.json").code == 0
    ended = taccl("lower", "group.json", "--rank", "4", "-o", "x.xml")
    assert (ended.code, ended.err) == (2, "error: command line: --rank: rank 4 does not exist, ranks are 0..3\n")
    ended = taccl("lower", "group.json", "--to", "mscclpp-json", "-o", "x.json")
    assert (ended.code, "--to" in ended.err) == (2, True)
    assert taccl("synth", "ring:4", "allgather", "-o", "out").code == 0
    ended = taccl("lower", "out/schedule.json", "--rank", "0", "-o", "x.xml")
    assert (ended.code, "--rank" in ended.err) == (2, True)


@pytest.mark.usefixtures("folder")
def test_a_switch_adds_up_where_the_machine_has_one_that_can(taccl):
    assert taccl("synth", "ndv5", "allreduce", "--nodes", 1, "--engine", "templates", "-o", "n.json").code == 0
    ended = taccl("lower", "n.json", "--to", "mscclpp-json", "--switch", "--instances", 2, "-o", "nvls.json", "--json")
    assert (ended.code, ended.json["in_place"], ended.json["threadblocks"]) == (0, True, 2)
    assert ended.json["bound_us"] * (1 + ended.json["gap"]) == pytest.approx(ended.json["replay_us"])
    told = taccl("lower", "n.json", "--to", "mscclpp-json", "--switch", "-o", "nvls.json").err
    assert ": 1 threadblock and " in told
    assert "at 976.6KiB: predicted time " in told
    assert "; switches included), gap " in told
    assert taccl("check", "nvls.json").code == 0
    assert taccl("run", "nvls.json", "--size", "64KiB").code == 0
    replay = taccl("simulate", "nvls.json", "--topology", "ndv5", "--size", "64MiB", "--json")
    assert replay.code == 0, replay.err
    shown = taccl("show", "nvls.json")
    assert "switch" in shown.out


@pytest.mark.usefixtures("folder")
def test_a_size_at_which_a_plan_by_switch_is_not_run_is_told(taccl):
    """Chunks of 16 bytes at least, of which every AllReduce by two or more owners has as many."""
    words = ("synth", "ndv5", "allreduce", "--engine", "templates", "--size", "1000003", "-o", "n.json")
    assert taccl(*words).code == 0
    ended = taccl("lower", "n.json", "--to", "mscclpp-json", "--switch", "-o", "nvls.json", "--json")
    assert ended.json["unit_bytes"] % 16 == 0
    told = taccl("lower", "n.json", "--to", "mscclpp-json", "--switch", "-o", "nvls.json").err
    assert f"which is not run as it is no multiple of {ended.json['unit_bytes']} bytes: predicted time" in told


@pytest.mark.usefixtures("folder")
def test_switches_of_two_nodes_serve_their_own_and_rails_join_them(taccl):
    size = ("--size", "64MiB")
    assert taccl("synth", "ndv5", "allreduce", "--nodes", 2, "--engine", "templates", *size, "-o", "n.json").code == 0
    ended = taccl(
        "lower",
        "n.json",
        "--to",
        "mscclpp-json",
        "--switch",
        "--runtime-profile",
        "neutral",
        "-o",
        "nvls.json",
        "--json",
    )
    assert (ended.code, ended.json["pieces"], ended.json["rails"]) == (0, 4, "direct")
    assert ended.json["bound_us"] < ended.json["replay_us"] < ended.json["makespan_us"]
    assert taccl("run", "nvls.json", "--size", "64KiB").code == 0
    replay = taccl("simulate", "nvls.json", "--topology", "ndv5", "--nodes", 2, *size, "--json").json
    assert replay["results"][0]["time_us"] == pytest.approx(ended.json["replay_us"])


def test_a_switch_whose_ranks_have_no_links_is_refused_with_file_and_field(taccl, refuse, folder):
    machine = taccl("topo", "show", "ring:4", "--json").json
    machine["switches"] = [{"name": "plane", "ranks": [0, 1, 2, 3], "multicast": True, "reduce": True}]
    (folder / "m.json").write_text(json.dumps(machine), encoding="utf-8")
    words = ["s.json: topology.links: switch plane joins ranks 0 and 2, and there is no link 0->2; add all links"]
    for kind in ("allgather", "allreduce"):
        assert taccl("synth", "m.json", kind, "--engine", "templates", "-o", "s.json").code == 0
        refuse(2, words, "lower", "s.json", "--to", "mscclpp-json", "--switch", "-o", "plan.json")


def test_a_switch_is_for_plans_and_for_machines_that_have_one(taccl, folder, schedules):
    (folder / "s.json").write_text(schedules["allreduce"], encoding="utf-8")
    ended = taccl("lower", "s.json", "--switch", "-o", "a.xml")
    assert (ended.code, "no runtime for XML has a step that a switch carries out" in ended.err) == (2, True)
    ended = taccl("lower", "s.json", "--to", "mscclpp-json", "--switch", "-o", "a.json")
    assert (ended.code, "has no switch that multicasts and reduces among all its 3 ranks" in ended.err) == (2, True)


def rings(folder, taccl, machine="ring:4"):
    """Schedule of an AllGather that goes round two rings, as ``rings.json``."""
    ended = taccl(
        "synth", machine, "allgather", "--size", "64MB", "--engine", "templates", "--only-schedule", "-o", "rings.json"
    )
    assert ended.code == 0, ended.err
    return folder / "rings.json"


def test_traces_are_a_folder_that_another_clock_runs(taccl, folder):
    rings(folder, taccl)
    record = taccl("lower", "rings.json", "--to", "chakra", "--name", "mine", "-o", "traces", "--json").json
    names = [f"mine.{rank}.et" for rank in range(4)] + [f"workload.{rank}.et" for rank in range(4)]
    assert sorted(record["files"]) == sorted(
        f"traces/{name}" for name in [*names, "system.json", "memory.json", "network.yml"]
    )
    assert {path.name for path in (folder / "traces").iterdir()} == {path.split("/")[1] for path in record["files"]}
    assert set(record) == {"files", "makespan_us", "target", "nodes", "network", "arguments"}
    assert (record["target"], record["network"]) == ("chakra", "Ring")
    ranks = [decode((folder / "traces" / name).read_bytes())[1] for name in names[:4]]
    assert sum(map(len, ranks)) == record["nodes"]
    text = (folder / "traces" / "network.yml").read_text(encoding="utf-8")
    assert replay_ns(ranks, text) == pytest.approx(1000 * record["makespan_us"], abs=10)
    ended = taccl("lower", "rings.json", "--to", "chakra", "-o", "again")
    assert ended.err.splitlines()[0].startswith("wrote again: execution traces of 4 ranks, ")
    assert "--network-configuration=network.yml" in ended.err


def test_channels_of_rings_are_written_for_nccl_and_rccl(taccl, folder):
    rings(folder, taccl)
    record = taccl("lower", "rings.json", "--to", "nccl-graph", "-o", "graph.xml", "--json").json
    assert set(record) == {"files", "makespan_us", "target", "rings", "trees", "channel_gbps", "rounded"}
    assert (record["rings"], record["trees"], record["channel_gbps"]) == (2, 0, 50.0)
    channels = read_channels((folder / "graph.xml").read_text(encoding="utf-8"), "graph.xml")
    assert channels.rings == ((0, 1, 2, 3), (0, 3, 2, 1))
    ended = taccl("lower", "rings.json", "--to", "rccl-channels", "-o", "-")
    assert (ended.out, ended.err) == ("export NCCL_RINGS='0 1 2 3|0 3 2 1'\n", "")
    assert taccl("topo", "import", "graph.xml", "-o", "topo.json").code == 0


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("target", "option", "says"),
    [
        ("chakra", ("--runtime", "rccl"), "--runtime: means nothing for --to chakra"),
        ("nccl-graph", ("--instances", 2), "--instances: means nothing for --to nccl-graph"),
        ("nccl-graph", ("--name", "x"), "--name: means nothing"),
        ("rccl-channels", ("--switch",), "--switch: means nothing for --to rccl-channels"),
        ("rccl-channels", ("--no-network",), "--no-network: means nothing"),
        ("msccl-xml", ("--no-network",), "--no-network: means nothing for --to msccl-xml"),
        ("chakra", ("--rank", 0), "--rank: only a group schedule"),
        ("chakra", ("--name", "a/b"), "--name: 'a/b' cannot be the prefix"),
    ],
)
def test_options_without_a_meaning_for_a_target_are_refused(refuse, target, option, says):
    refuse(2, [says], "lower", "schedule.json", "--to", target, *option, "-o", "out")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("output", ["-", "algorithm.xml"])
def test_traces_are_not_one_file(refuse, output):
    refuse(2, ["--output: is one file"], "lower", "schedule.json", "--to", "chakra", "-o", output)


def test_a_machine_that_is_no_network_is_refused_and_can_go_without(taccl, refuse, folder):
    rings(folder, taccl, "switch:4")
    refuse(5, ["no network like switch-4", "--no-network"], "lower", "rings.json", "--to", "chakra", "-o", "out")
    record = taccl("lower", "rings.json", "--to", "chakra", "--no-network", "-o", "out", "--json").json
    assert record["network"] is None
    assert not (folder / "out" / "network.yml").exists()


def test_a_plan_has_groups_and_loops_as_asked(taccl, folder, schedules):
    (folder / "s.json").write_text(schedules["broadcast"], encoding="utf-8")
    base = ("lower", "s.json", "--to", "mscclpp-json", "-o", "plan.json")
    grouped = taccl(*base, "--group", 3, "--json")
    assert grouped.json["threadblocks"] % 3 == 0
    assert "tbg_info" in (folder / "plan.json").read_text(encoding="utf-8")
    assert taccl("check", "plan.json").code == 0
    assert "3 threadblocks share every operation" in taccl(*base, "--group", 3).err
    looped = taccl(*base, "--loop", "4KiB", "--instances", 2)
    assert (looped.code, "loops of 4KiB" in looped.err) == (0, True)
    assert "pipeline" in (folder / "plan.json").read_text(encoding="utf-8")
    assert taccl("check", "plan.json").code == 0
    assert taccl("simulate", "plan.json", "--topology", "ring:3", "--sizes", "64KiB:256KiB").code == 0


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["--group", "only mscclpp-json"], ["--group", 2]),
        (["--loop", "only mscclpp-json"], ["--loop", "4KiB"]),
        (["--loop", "not of groups"], ["--to", "mscclpp-json", "--loop", "4KiB", "--group", 2]),
        (["--loop", "of signals"], ["--to", "mscclpp-json", "--loop", "4KiB", "--protocol", "LL"]),
        (["--loop", "found 100 bytes"], ["--to", "mscclpp-json", "--loop", "100"]),
        (["--group", "instances alone"], ["--to", "mscclpp-json", "--switch", "--group", 2]),
    ],
)
def test_groups_and_loops_where_they_cannot_be_are_refused(folder, refuse, schedules, words, options):
    (folder / "s.json").write_text(schedules["broadcast"], encoding="utf-8")
    refuse(2, words, "lower", "s.json", *options, "-o", "x.out")
