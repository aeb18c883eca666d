"""``taccl synth``: what it prints, what its options do."""

import json
from pathlib import Path

import pytest

from taccl_py.api.policy import RACE_LIMIT_S
from taccl_py.cli import main
from taccl_py.collective import Kind
from taccl_py.errors import LimitReached
from taccl_py.jsonio import parse_json
from taccl_py.lowering.msccl_xml import parse_xml
from taccl_py.runtimes import RUNTIMES
from taccl_py.schedule.files import read_schedule
from taccl_py.synthesis.catalog import ENGINE_NAMES
from taccl_py.verify.msccl import verify_program
from taccl_py.verify.schedule import verify_schedule
from tests.cli.inputs import MATRICES, PROFILE, TACCL_SKETCH, TACCL_SKETCH_OF_ONE, write_json

# Other programs rely on these; a new one is added here, none is ever taken away or renamed.
KEYS = {
    "notes": list,
    "command": str,
    "collective": str,
    "topology": str,
    "num_ranks": int,
    "num_nodes": int,
    "root": int,
    "chunks_per_rank": int,
    "sketch": str,
    "engine": str,
    "found_by": str,
    "solver": str,
    "seed": int,
    "status": str,
    "makespan_us": float,
    "bound_us": float,
    "bounds": list,
    "ended": str,
    "bound_reason": str,
    "gap": float,
    "size_bytes": int,
    "algbw_gbps": float,
    "busbw_gbps": float,
    "messages": int,
    "steps": int,
    "files": list,
    "solver_seconds": float,
    "stage_seconds": dict,
    "runtime_profile": str,
}
RUNTIME_KEYS = {
    "instances": int,
    "runtime_us": float,
    "runtime_bound_us": float,
    "runtime_bound_reason": str,
    "runtime_evidence": str,
}
LOWERED_KEYS = {
    "replay_us": float,
    "threadblocks": int,
    "threadblock_steps": int,
    "channels": int,
    "runtime": str,
    "protocol": str,
    "in_place": bool,
    "out_of_place": bool,
    "min_bytes": int,
    "max_bytes": int,
    "count_divisor": int,
    "scratch_chunks": int,
}


def schedule_of(folder, name="out/schedule.json"):
    return read_schedule((folder / name).read_text(encoding="utf-8"), name)


@pytest.mark.parametrize(
    ("options", "declared"),
    [
        (("--min-bytes", "1MiB"), "for 1MiB to "),
        (("--max-bytes", "4KiB"), "for 0 to 4KiB"),
        (("--max-bytes", "4KiB", "--runtime", "mscclpp"), " to 4KiB"),
    ],
)
def test_a_file_that_does_not_declare_itself_for_the_size_says_so(taccl, options, declared):
    asked = ("ring:4", "allgather", "--engine", "templates", "--size", "64KiB")
    (note,) = taccl("synth", *asked, *options, "--json").json["notes"]
    assert note.startswith("no runtime takes the file at 64KiB, as it declares itself for ")
    assert declared in note
    assert not any("declares itself" in each for each in taccl("synth", *asked, "--json").json["notes"])


def test_json_has_the_stable_keys_and_nothing_else_is_on_stdout(taccl):
    ended = taccl("synth", "ring:4", "allgather", "--json")
    assert ended.code == 0
    assert ended.err == ""
    record = ended.json
    assert set(record) == {*KEYS, *LOWERED_KEYS, "runtime_note"}
    for key, kind in {**KEYS, **LOWERED_KEYS}.items():
        assert type(record[key]) is kind, key
    assert record["runtime_profile"] == "neutral"
    assert record["runtime_note"] == "the GPU of ring-4 is not known (--runtime-profile names one)"


def test_json_under_a_runtime_profile_has_its_keys_beside_those_of_links_and_ports(taccl):
    record = taccl("synth", "mi300x", "allgather", "--size", "64KiB", "--engine", "templates", "--json").json
    assert set(record) == {*KEYS, *LOWERED_KEYS, *RUNTIME_KEYS}
    for key, kind in RUNTIME_KEYS.items():
        assert type(record[key]) is kind, key
    neutral = taccl(
        "synth",
        "mi300x",
        "allgather",
        "--size",
        "64KiB",
        "--engine",
        "templates",
        "--runtime-profile",
        "neutral",
        "--json",
    ).json
    assert (record["runtime_profile"], neutral["runtime_profile"]) == ("rccl-mi300x", "neutral")
    assert record["makespan_us"] == neutral["makespan_us"] < record["runtime_bound_us"] <= record["runtime_us"]


def test_json_of_a_known_case_has_the_known_values(taccl):
    # Two steps of 0.5 us + 20 us/MB * 0.25 MB: one to a neighbour, one to the rank opposite.
    record = taccl("synth", "ring:4", "allgather", "--engine", "milp", "--size", "1MB", "--json").json
    assert record["makespan_us"] == record["bound_us"] == record["replay_us"] == pytest.approx(11.0)
    assert record["status"] == "optimal"
    assert record["gap"] == 0
    assert record["size_bytes"] == 1_000_000
    assert record["algbw_gbps"] == pytest.approx(1_000_000 / 11.0 / 1000)
    assert record["busbw_gbps"] == pytest.approx(record["algbw_gbps"] * 3 / 4)
    assert (record["collective"], record["topology"], record["num_ranks"], record["num_nodes"]) == (
        "allgather", "ring-4", 4, 1
    )  # fmt: skip
    assert (record["steps"], record["messages"], record["chunks_per_rank"]) == (2, 12, 1)
    assert record["files"] == []


def test_a_table_says_the_same_as_json(taccl):
    ended = taccl("synth", "ring:4", "allgather", "--engine", "milp")
    assert ended.err == ""
    for text in (
        "allgather on ring-4, 4 ranks, 976.6KiB",
        "11 us",
        "90.9 GB/s",
        "68.2 GB/s",
        "0.00 % to 1 chunk per rank  (optimal)",
    ):
        assert text in ended.out


def test_a_table_says_at_which_sizes_the_file_is_selectable(taccl):
    words = ("synth", "full:4", "allreduce", "--engine", "templates", "--min-bytes", "1KiB", "--max-bytes", "1MiB")
    assert "selectable            │ 1KiB to 1MiB, for counts that 4 divides" in taccl(*words).out
    record = taccl(*words, "--json").json
    assert (record["min_bytes"], record["max_bytes"], record["count_divisor"]) == (1 << 10, 1 << 20, 4)
    every = taccl("synth", "full:4", "allgather", "--engine", "templates", "--max-bytes", "1MiB")
    assert "selectable            │ 0 to 1MiB  " in every.out


def test_a_schedule_alone_is_not_lowered(taccl, folder):
    record = taccl("synth", "ring:4", "allgather", "-o", "ring.json", "--json").json
    assert set(record) == {*KEYS, "runtime_note"}
    assert record["files"] == ["ring.json"]
    assert not verify_schedule(schedule_of(folder, "ring.json"))


def test_stdout_is_data_and_notes_go_to_stderr(taccl):
    ended = taccl("synth", "ring:4", "allgather", "-o", "out")
    assert "wrote" not in ended.out
    assert ended.err.splitlines() == [
        f"wrote out/{name}" for name in ("schedule.json", "algorithm.xml", "summary.json")
    ]
    ended = taccl("synth", "ring:4", "allgather", "-o", "out", "--json")
    assert ended.json["files"] == ["out/schedule.json", "out/algorithm.xml", "out/summary.json"]


def test_the_summary_is_what_json_prints_without_times_of_this_run(taccl, folder):
    printed = taccl("synth", "ring:4", "allgather", "-o", "out", "--json").json
    summary = json.loads((folder / "out/summary.json").read_text(encoding="utf-8"))
    assert summary.pop("format") == "taccl-summary"
    assert summary.pop("files") == ["schedule.json", "algorithm.xml", "summary.json"]
    assert summary == {
        key: printed[key] for key in printed if key not in ("files", "notes", "solver_seconds", "stage_seconds")
    }


def test_where_switches_are_faster_than_messages_the_command_for_that_is_told(taccl):
    words = ("synth", "ndv5", "allreduce", "--size", "64MiB", "--engine", "templates")
    ended = taccl(*words, "-o", "out")
    told = "switches can do takes 170.5 us instead of 277.8 us: taccl lower out/schedule.json --to mscclpp-json --switch -o plan.json"
    assert told in ended.err
    assert taccl("lower", "out/schedule.json", "--to", "mscclpp-json", "--switch", "-o", "plan.json").code == 0
    assert taccl(*words, "--json").json["switch_us"] == pytest.approx(170.5, rel=1e-3)


def test_where_messages_are_faster_or_no_switch_helps_nothing_is_told(taccl):
    for words in (("ndv5", "allgather", "--size", "64MiB"), ("ndv4", "allreduce"), ("ndv5", "alltoall")):
        assert "switch" not in taccl("synth", *words, "--engine", "templates").err


def test_status_gap_and_bound_agree(taccl):
    record = taccl("synth", "mesh:3x3", "alltoall", "--time-limit", "0.5", "--json").json
    assert record["makespan_us"] >= record["bound_us"] * (1 - 1e-9)
    assert record["gap"] == pytest.approx(max(0.0, record["makespan_us"] / record["bound_us"] - 1))
    assert record["status"] in ("optimal", "optimal-in-class", "feasible")
    assert (record["status"] == "optimal") == (record["gap"] < 1e-9)


@pytest.mark.parametrize("collective", list(Kind))
def test_every_collective_is_synthesized_and_lowered(taccl, collective):
    ended = taccl("synth", "full:3", str(collective), "-o", "out", "--json")
    assert ended.code == 0
    assert ended.json["collective"] == collective
    assert taccl("check", "out/schedule.json", "out/algorithm.xml").code == 0


@pytest.mark.parametrize("name", ["AllGather", "all-gather", "ALL_GATHER"])
def test_collectives_are_understood_in_every_spelling(taccl, name):
    assert taccl("synth", "ring:3", name, "--json").json["collective"] == "allgather"


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "gather", "scatter"])
def test_a_root_is_kept_down_to_the_program(taccl, folder, collective):
    record = taccl("synth", "ring:4", collective, "--root", 2, "-o", "out", "--json").json
    assert record["root"] == 2
    assert schedule_of(folder).collective.root == 2
    xml = (folder / "out/algorithm.xml").read_text(encoding="utf-8")
    assert verify_program(xml, RUNTIMES["executor"]).facts.root == 2


def test_a_size_is_counted_as_nccl_tests_does(taccl):
    for text, size in (("64KiB", 65536), ("1MB", 10**6), ("1M", 1 << 20), ("1.5GiB", 3 << 29), ("4096", 4096)):
        assert taccl("synth", "ring:3", "allgather", "--size", text, "--json").json["size_bytes"] == size


def test_chunks_cut_a_share(taccl, folder):
    record = taccl("synth", "ring:3", "allgather", "--chunks", 3, "-o", "out", "--json").json
    assert record["chunks_per_rank"] == 3
    assert schedule_of(folder).collective.num_chunks == 9


def test_a_process_group_is_a_machine_of_its_own(taccl, folder):
    record = taccl("synth", "ndv2", "allgather", "--ranks", "4-7,0", "-o", "out", "--json").json
    assert (record["num_ranks"], schedule_of(folder).topology.num_ranks) == (5, 5)
    assert taccl("check", "out/schedule.json", "out/algorithm.xml").code == 0


def test_a_process_group_without_a_path_ends_with_3(refuse):
    sentence = refuse(3, ["rank 4 to rank 2"], "synth", "ring:8", "gather", "--ranks", "2,4,6", "-o", "out")
    assert "no path of links" in sentence
    assert "ranks 2,4,6 of ring-8" in sentence
    assert "outside of a group do not pass its data on; they do in taccl groups with --relay" in sentence


def test_nodes_multiply_a_machine(taccl):
    for arguments in (("ndv4", "--nodes", 2), ("ndv4-x2",)):
        name, *options = arguments
        record = taccl("synth", name, "broadcast", *options, "--engine", "templates", "--only-schedule", "--json").json
        assert (record["topology"], record["num_ranks"], record["num_nodes"]) == ("ndv4-x2", 16, 2)


def test_a_sketch_says_how_many_chunks_and_nodes_there_are(taccl):
    name = "torus-4x4-translations"
    record = taccl("synth", "torus:4x4", "broadcast", "--sketch", name, "--time-limit", 0.3, "--json").json
    assert (record["sketch"], record["chunks_per_rank"]) == (name, 4)
    options = ("--sketch", name, "--chunks", 2)
    record = taccl("synth", "torus:4x4", "broadcast", *options, "--time-limit", 0.3, "--json").json
    assert record["chunks_per_rank"] == 2
    record = taccl("synth", "ndv4", "broadcast", "--sketch", "rails", "--time-limit", 0.3, "--json").json
    assert (record["sketch"], record["num_nodes"]) == ("ndv4-rails", 2)


@pytest.mark.parametrize(
    ("change", "default_bytes", "default_us", "of_4_kb_us"),
    [
        ({}, 2_000_000, 2.0, 1.002),  # a link takes 1 us, and 1 us for each MB
        ({"name": "pair_1KB"}, 2000, 2.0, 3.0),  # and 1 us for each KB
        ({"name": "pair_1KB", "chunk_bytes": 500}, 1000, 2.0, 5.0),
        ({"name": "pair_1KB", "unit_us": 0.01}, 2000, 0.02, 0.03),
    ],
    ids=["1 MB", "the name says it", "a field says it", "hundredths of a microsecond"],
)
def test_two_ranks_of_a_taccl_profile_exchange_chunks_of_its_size_or_as_much_as_is_asked_for(
    taccl, folder, change, default_bytes, default_us, of_4_kb_us
):
    """Each sends the other half of the size."""
    profile, sketch = (
        write_json(folder / "p.json", MATRICES | change),
        write_json(folder / "s.json", TACCL_SKETCH_OF_ONE),
    )
    asked = ("synth", profile, "allgather", "--sketch", sketch, "--json")
    record = taccl(*asked).json
    assert set(record) == {*KEYS, *LOWERED_KEYS, "runtime_note"}
    assert (record["size_bytes"], record["makespan_us"]) == (default_bytes, pytest.approx(default_us))
    assert taccl(*asked, "--size", "4KB").json["makespan_us"] == pytest.approx(of_4_kb_us)
    assert taccl("bound", profile, "allgather", "--sketch", sketch, "--size", "4KB", "--json").json["results"][0][
        "bound_us"
    ] == pytest.approx(of_4_kb_us)


def test_a_demand_on_a_taccl_profile(taccl, refuse, folder):
    """From rank 0 to rank 1 of a node: 2 us, and 10 us/MB."""
    profile, sketch = write_json(folder / "p.json", PROFILE), write_json(folder / "s.json", TACCL_SKETCH)
    (folder / "counts.csv").write_text("0,1,160000\n", encoding="utf-8")
    asked = ("sendrecv", "--counts", "counts.csv", "--sketch", sketch)
    record = taccl("synth", profile, *asked, "--json").json
    assert record["makespan_us"] == pytest.approx(2 + 10 * 0.16)
    refuse(2, ["--sketch", "completes a TACCL profile", "leave it out"], "synth", "ndv2", *asked[:-1], "sk-1")


def test_for_mscclpp_there_is_a_plan(taccl, folder):
    """What the table says is what the plan is; what follows finds the folder to be one for MSCCL++."""
    options = ("--runtime", "mscclpp", "--size", "64KiB", "--engine", "templates", "--ranks", "0-3", "-o", "out")
    record = taccl("synth", "ndv5", "allreduce", *options, "--json").json
    plan_keys = {*LOWERED_KEYS, "unit_bytes", "group", "loop_bytes", "switch_runtime_us"} - {
        "count_divisor",
        "scratch_chunks",
    }
    assert set(record) == {*KEYS, *plan_keys, *RUNTIME_KEYS}
    assert (record["runtime"], record["runtime_profile"]) == ("mscclpp", "mscclpp-h100")
    assert [Path(name).name for name in record["files"]] == ["schedule.json", "plan.json", "summary.json"]
    checked = taccl("check", "out", "--json").json
    assert [Path(each["file"]).name for each in checked["files"]] == ["schedule.json", "plan.json"]
    assert all(each["good"] for each in checked["files"])
    assert "in multiples of" in taccl("synth", "ndv5", "allreduce", *options).out
    assert taccl("run", "out/plan.json").code == 0
    assert taccl("install", "out/plan.json", "-o", "plans").code == 0
    assert (folder / "plans" / "taccl_plans.py").exists()


def test_for_mscclpp_a_size_at_which_the_plan_is_not_run_is_told(taccl):
    """Three ranks do not divide 1 MiB; all of them together do 1536 KiB."""
    options = ("--runtime", "mscclpp", "--engine", "templates", "--ranks", "0-2", "-o", "out")
    ended = taccl("synth", "ndv5", "allreduce", *options, "--size", "1MiB")
    note = "the runtime runs the plan at multiples of"
    assert f"note: {note}" in ended.err
    told = taccl("synth", "ndv5", "allreduce", *options, "--size", "1MiB", "--json").json["notes"]
    assert [each.startswith(note) for each in told].count(True) == 1
    assert "and not at the schedule's 1048576" in ended.err
    assert note not in taccl("synth", "ndv5", "allreduce", *options, "--size", "1536KiB").err


def test_for_mscclpp_a_faster_plan_by_switch_is_told(taccl):
    words = (
        "synth",
        "ndv5",
        "allreduce",
        "--runtime",
        "mscclpp",
        "--engine",
        "templates",
        "--size",
        "8MiB",
        "-o",
        "out",
    )
    record = taccl(*words, "--json").json
    assert record["switch_runtime_us"] < record["runtime_us"]
    (note,) = record["notes"]
    command = "taccl lower out/schedule.json --to mscclpp-json --switch -o plan.json"
    assert "by switch it takes" in note
    assert f"({command})" in note
    made = taccl(*command.split()[1:], "--json").json
    assert made["runtime_us"] == pytest.approx(record["switch_runtime_us"])


def test_for_mscclpp_without_a_profile_the_plan_has_one_instance(taccl):
    options = ("--runtime", "mscclpp", "--engine", "templates", "--protocol", "LL", "-o", "out", "--json")
    record = taccl("synth", "ring:4", "allgather", *options).json
    assert "runtime_us" not in record
    assert (record["protocol"], record["runtime_profile"]) == ("LL", "neutral")
    alone = taccl("synth", "ring:4", "allgather", *options[:4], "-o", "only.json", "--json").json
    assert [Path(name).name for name in alone["files"]] == ["only.json"]
    assert "protocol" not in alone


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--sizes", "1KiB:1MiB"), "--sizes: is for runtimes that load XML"),
        (("--single-failures", "nic"), "--single-failures: is for runtimes that load XML"),
        (("-o", "plan.xml"), "--output: MSCCL++ loads plans, not XML"),
        (("-o", "out", "--only-schedule"), "--output: there is no program to write; name a file ending in .json"),
        (("--protocol", "LL128"), "have protocol Simple or LL, found LL128"),
        (("--min-bytes", "2MB", "--max-bytes", "1MB"), "fewer than --min-bytes"),
        (("--runtime-profile", "rccl-mi300x"), "profile rccl-mi300x is of rccl, but the runtime is mscclpp"),
    ],
)
def test_for_mscclpp_what_is_for_xml_is_refused(taccl, options, what):
    ended = taccl("synth", "ring:4", "allgather", "--runtime", "mscclpp", *options)
    assert (ended.code, ended.out) == (2, "")
    assert what in ended.err


@pytest.mark.parametrize("runtime", list(RUNTIMES))
@pytest.mark.parametrize("placement", ["in", "out", "both"])
def test_lowering_options_reach_the_program(taccl, folder, runtime, placement):
    options = ("--runtime", runtime, "--placement", placement, "--protocol", "LL", "--instances", 2, "--engine", "milp")
    record = taccl("synth", "ring:4", "allgather", *options, "-o", "ring.xml", "--json").json
    program = parse_xml((folder / "ring.xml").read_text(encoding="utf-8"), "ring.xml", RUNTIMES[runtime])
    assert record["protocol"] == program.protocol == "LL"
    assert (record["in_place"], record["out_of_place"]) == (program.in_place, program.out_of_place)
    assert program.in_place == (placement != "out")
    assert program.out_of_place == (placement != "in" if runtime != "legacy" else placement == "out")
    assert program.num_chunks_per_loop == 8
    assert taccl("check", "ring.xml", "--runtime", runtime).code == 0


def test_bytes_say_when_the_runtime_may_use_the_file(taccl, folder):
    options = ("--min-bytes", "1KiB", "--max-bytes", "1MiB")
    record = taccl("synth", "ring:4", "allgather", *options, "-o", "ring.xml", "--json").json
    program = parse_xml((folder / "ring.xml").read_text(encoding="utf-8"), "ring.xml", RUNTIMES["executor"])
    assert (record["min_bytes"], record["max_bytes"]) == (program.min_bytes, program.max_bytes) == (1024, 1 << 20)


@pytest.mark.parametrize("solver", ["cp-sat", "highs", "cbc"])
def test_the_solver_that_is_asked_for_is_used(taccl, solver):
    record = taccl("synth", "mesh:2x3", "alltoall", "--solver", solver, "--time-limit", 1, "--json").json
    assert record["solver"] == solver


def test_the_engine_and_the_seed_are_written_down(taccl, folder):
    record = taccl("synth", "ring:4", "allgather", "--engine", "milp", "--seed", 7, "-o", "out", "--json").json
    assert (record["engine"], record["seed"]) == ("milp", 7)
    origin = schedule_of(folder).origin
    assert (origin.engine, origin.seed, origin.solver, origin.status) == ("milp", 7, "cp-sat", "optimal")
    assert origin.bound_us == record["bound_us"]


def test_a_size_of_one_byte_and_a_very_large_one_are_possible(taccl):
    for size in ("1B", "1TiB"):
        record = taccl("synth", "ring:4", "allreduce", "--size", size, "--time-limit", 1, "--json").json
        assert record["makespan_us"] >= record["bound_us"] * (1 - 1e-9) > 0


def test_json_is_strict(taccl):
    text = taccl("synth", "ring:4", "allgather", "--json").out
    parse_json(text, "stdout")
    assert text.endswith("}\n")


@pytest.mark.usefixtures("folder")
def test_debug_shows_the_traceback_of_an_error():
    with pytest.raises(Exception, match="not a topology"):
        main(["--debug", "synth", "nothing", "allgather"])


def test_the_note_about_a_slow_replay_is_true(taccl):
    ended = taccl("synth", "ring:4", "allgather", "--size", "1KiB", "--instances", 32)
    assert "32 instances" in ended.err
    assert "share a port" not in ended.err


def test_a_bound_of_some_schedules_only_says_of_which(taccl):
    row = ("synth", "torus:4x4", "broadcast", "--only-schedule", "--time-limit", 0.5)
    assert "bound (2 chunks per rank)" in taccl(*row, "--engine", "milp", "--chunks", 2).out
    sketched = ("synth", "ndv2", "allgather", "--sketch", "sk-1", "--only-schedule", "--time-limit", 0.5)
    assert "bound (1 chunk per rank, sketch ndv2-sk-1)" in taccl(*sketched).out
    assert "per rank" not in taccl(*row, "--engine", "templates").out


@pytest.mark.parametrize(
    ("options", "engine"),
    [
        ((), "auto"),
        (("--chunks", 2), "auto"),
        (("--sketch", "torus-4x4-translations"), "milp"),
        (("--solver", "highs"), "milp"),
        (("--sketch", "torus-4x4-translations", "--engine", "auto"), "auto"),
    ],
)
def test_what_is_fastest_is_asked_for_unless_a_sketch_or_solver_is_named(taccl, monkeypatch, options, engine):
    found = []

    def give_up(request, _events):
        found.append(request.engine)
        raise LimitReached("enough")

    monkeypatch.setattr("taccl_py.api.search.synthesize_for", give_up)
    assert taccl("synth", "torus:4x4", "broadcast", *options).code == 3
    assert found == [engine]


@pytest.mark.slow
def test_without_any_option_data_is_cut_as_finely_as_pays(taccl, monkeypatch):
    """Four links at 20 us/MB lead away from rank 0, so 0.32 ms are the least; in one piece it takes four times that."""
    monkeypatch.setattr("taccl_py.api.policy.RACE_LIMIT_S", 6.0)
    record = taccl("synth", "torus:4x4", "broadcast", "--size", "64MB", "--only-schedule", "--json").json
    assert record["makespan_us"] < 400 < 4 * record["bound_us"]
    assert (record["engine"], record["found_by"]) == ("auto", "trees")


def test_the_winner_of_a_race_is_named(taccl, folder):
    row = ("synth", "ring:4", "allgather", "--size", "16MiB", "--time-limit", 1)
    found_by = taccl(*row, "-o", "out", "--json").json["found_by"]
    origin = schedule_of(folder).origin
    assert (origin.engine, origin.found_by) == ("auto", found_by)
    assert found_by in ENGINE_NAMES
    assert found_by != "auto"
    assert "is a race" in taccl(*row).out
    alone = taccl(*row, "--engine", "trees")
    assert "is a race" not in alone.out


def test_a_collective_that_the_runtimes_library_does_not_call_is_said(taccl):
    """RCCL has ncclGather, which looks for XML; the executor's NCCL has none."""
    words = ("synth", "full:4", "gather", "--engine", "templates", "--size", "64KiB")
    assert "has no call for gather, so it loads the XML and never selects it" in taccl(*words).err
    assert "has no call" not in taccl(*words, "--runtime", "rccl").err


def test_what_depends_on_the_gpu_or_on_luck_is_told(taccl):
    one_way = ("--without-link", "1->0", "--without-link", "2->1", "--without-link", "0->2")
    row = (
        "synth",
        "ring:3",
        "alltoall",
        *one_way,
        "--engine",
        "greedy",
        "--size",
        "4KiB",
        "--runtime",
        "rccl",
        "-o",
        "out.xml",
    )
    assert "still being sent" in taccl(*row, "--protocol", "LL").err
    assert "still being sent: use LL128" in taccl("check", "out.xml", "--runtime", "rccl").out
    assert "before all threads" in taccl("check", "out.xml", "--runtime", "rccl", "--verbose").out
    assert "still being sent" not in taccl(*row).err
    crowd = (
        "synth",
        "full:16",
        "alltoall",
        "--engine",
        "templates",
        "--size",
        "1MiB",
        "--instances",
        3,
        "-o",
        "out.xml",
    )
    assert "93 threadblocks a GPU hang on a V100, which runs 80" in taccl(*crowd).err


def test_larger_machines_have_more_time_unless_a_limit_is_given(taccl, monkeypatch):
    """20 seconds on up to 64 ranks, 7 for one engine, 60 for sketches; in proportion on more."""
    found = []

    def give_up(request, _events):
        found.append(request.options.limits.seconds)
        raise LimitReached("enough")

    monkeypatch.setattr("taccl_py.api.search.synthesize_for", give_up)
    monkeypatch.setattr("taccl_py.api.policy.RACE_LIMIT_S", RACE_LIMIT_S)
    milp = ("--engine", "milp")
    rows = [
        ("ring:64", *milp),
        ("ring:128", *milp),
        ("ring:128",),
        ("ring:128", "--time-limit", 3),
        ("ring:8", "--sketch", "auto"),
    ]
    for topology, *options in rows:
        assert taccl("synth", topology, "allgather", *options).code == 3
    assert found == [7, 14, 40, 3, 60]
