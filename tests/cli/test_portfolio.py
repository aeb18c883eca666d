"""``taccl synth --sizes``: files for a whole range of sizes."""

import json
import signal
from dataclasses import replace
from itertools import pairwise

import pytest

import taccl_py.portfolio.swap as swap
from taccl_py.errors import LimitReached
from taccl_py.lowering.msccl_xml import parse_xml
from taccl_py.pipeline import in_network
from taccl_py.runtimes import RUNTIMES
from taccl_py.schedule.files import read_schedule
from taccl_py.verify.schedule import verify_schedule
from tests.cli.running import tree

RANGE = ("--sizes", "1KiB:64MiB", "--time-limit", "4")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folder and record of the files for a small ring, made once."""
    from taccl_py.cli import main

    out = tmp_path_factory.mktemp("made") / "algos"
    with pytest.raises(SystemExit, match="0"):
        main(["synth", "ring:4", "allgather", *RANGE, "-o", str(out)])
    return out, json.loads((out / "taccl" / "allgather-0004-both-executor-ring-4-summary.json").read_text())


def test_files_are_for_disjoint_sizes_that_leave_nothing_out(made):
    out, record = made
    programs = [parse_xml(p.read_text(), p.name, RUNTIMES["executor"]) for p in sorted(out.glob("*.xml"))]
    assert programs[0].min_bytes == 1 << 10
    assert programs[-1].max_bytes == 64 << 20
    assert all(other.min_bytes == one.max_bytes + 1 for one, other in pairwise(programs))
    assert [path.name for path in sorted(out.glob("*.xml"))] == record["files"]


def test_protocols_only_rise_over_the_sizes(made):
    out, record = made
    programs = [parse_xml((out / name).read_text(), name, RUNTIMES["executor"]) for name in record["files"]]
    places = [("LL", "LL128", "Simple").index(str(program.protocol)) for program in programs]
    assert places == sorted(places)


def test_the_summary_holds_the_command_wherever_it_wrote_to(made):
    words = "taccl synth ring:4 allgather --sizes 1KiB:64MiB --time-limit 4 -o out/"
    assert made[1]["command"] == words


def test_a_runtime_finds_nothing_else_in_the_folder(made):
    """Runtimes stop at a file that is no algorithm, and do not look into folders."""
    out, _ = made
    assert {path.suffix for path in out.iterdir() if path.is_file()} == {".xml"}


def test_every_file_is_good(made, taccl):
    out, _ = made
    ended = taccl("check", *sorted(out.glob("*.xml")), *sorted(out.glob("taccl/*.json")))
    assert ended.code == 0, ended


def test_schedules_are_stored_beside_the_files(made):
    out, record = made
    for name, made_range in zip(record["files"], record["ranges"], strict=True):
        path = out / "taccl" / name.replace(".xml", ".json")
        schedule = read_schedule(path.read_text(), str(path))
        assert verify_schedule(schedule) == ()
        assert schedule.size_bytes == pytest.approx(made_range["max_bytes"])
        assert schedule.origin.bound_us <= schedule.makespan_us * (1 + 1e-9)


def test_the_record_has_a_row_for_every_probe(made):
    _, record = made
    sizes = [row["size_bytes"] for row in record["sizes"]]
    assert sizes[0] == 1 << 10
    assert sizes[-1] == 64 << 20
    assert all(other / one <= 4.01 for one, other in pairwise(sizes))
    for row in record["sizes"]:
        part = record["ranges"][row["range"]]
        assert part["min_bytes"] <= row["size_bytes"] <= part["max_bytes"]
        assert row["engine"] == part["engine"]
        assert row["bound_us"] <= row["makespan_us"] * (1 + 1e-9)
        assert row["replay_us"] <= 1.01 * row["makespan_us"]


@pytest.mark.parametrize("size", [1 << 10, 1 << 20, 64 << 20])
@pytest.mark.parametrize("engine", ["milp", "trees"])
def test_no_engine_alone_beats_the_portfolio(made, taccl, size, engine):
    _, record = made
    row = min(record["sizes"], key=lambda r: abs(r["size_bytes"] - size))
    alone = taccl("synth", "ring:4", "allgather", "--size", row["size_bytes"], "--engine", engine, "--json").json
    assert row["makespan_us"] <= alone["makespan_us"] * 1.0006


def test_the_large_sizes_of_a_ring_are_near_the_bound(made):
    _, record = made
    assert record["sizes"][-1]["gap"] <= 0.01


def test_made_again_the_files_replace_the_old_ones(taccl, folder):
    for sizes in ("1KiB:1MiB", "1KiB:2MiB"):
        ended = taccl("synth", "ring:4", "allgather", "--sizes", sizes, "-o", "algos", "--time-limit", "0.5")
        assert ended.code == 0, ended
    record = json.loads((folder / "algos/taccl/allgather-0004-both-executor-ring-4-summary.json").read_text())
    assert sorted(path.name for path in (folder / "algos").glob("*.xml")) == record["files"]
    assert record["ranges"][-1]["max_bytes"] == 2 << 20
    schedules = {path.name for path in (folder / "algos" / "taccl").iterdir()} - {
        "allgather-0004-both-executor-ring-4-summary.json"
    }
    assert schedules == {name.replace(".xml", ".json") for name in record["files"]}


def test_the_directory_is_swapped_whole(taccl, folder, monkeypatch):
    """The swap is tested by kills; here that all files go into it at once, and that one that fails leaves all old ones."""
    asked = ("synth", "ring:4", "allgather", "-o", "algos", "--time-limit", "0.5", "--sizes")
    assert taccl(*asked, "1KiB:1KiB").code == 0
    before, was = tree(folder), (folder / "algos").stat().st_ino
    with monkeypatch.context() as patched:
        patched.setattr(swap, "_swap", cannot)
        ended = taccl(*asked, "2KiB:4KiB")
    assert (ended.code, "algos: cannot be written" in ended.err) == (2, True)
    assert tree(folder) == before
    assert taccl(*asked, "2KiB:4KiB").code == 0
    assert (folder / "algos").stat().st_ino != was
    assert not tree(folder).keys() & before.keys() - {"algos/taccl/allgather-0004-both-executor-ring-4-summary.json"}


def cannot(_new, _folder):
    raise OSError(28, "No space left on device")


def test_where_somebody_is_files_are_written_one_by_one(taccl, folder):
    """A shell in a directory that is swapped would be in one that is gone."""
    was = folder.stat().st_ino
    for sizes in ("1KiB:1KiB", "2KiB:4KiB"):
        assert taccl("synth", "ring:4", "allgather", "-o", ".", "--time-limit", "0.5", "--sizes", sizes).code == 0
    assert folder.stat().st_ino == was
    record = json.loads((folder / "taccl/allgather-0004-both-executor-ring-4-summary.json").read_text())
    assert sorted(path.name for path in folder.glob("*.xml")) == record["files"]


@pytest.mark.parametrize(
    "others",
    [
        (("--ranks", "0,1"), ("--ranks", "1,0"), ("--ranks", "0,2")),
        pytest.param((("--placement", "in"), ("--placement", "out")), marks=pytest.mark.slow),
        pytest.param((("--runtime", "legacy"), ("--runtime", "rccl")), marks=pytest.mark.slow),
    ],
    ids=lambda others: others[0][0],
)
def test_files_for_other_calls_are_left_alone(taccl, folder, others):
    asked = ("synth", "full:4", "broadcast", "--sizes", "1KiB:1KiB", "--time-limit", "0.5", "-o", "pf")
    held: dict[str, str] = {}
    for words in ((), *others, ("--root", "1")):
        assert taccl(*asked, *words).code == 0
        now = {path.name: path.read_text() for path in (folder / "pf").glob("**/*.*")}
        assert held.items() <= now.items()
        # A program, its schedule and a summary.
        assert len(now) == len(held) + 3
        held = now


def test_many_ranks_in_no_order_make_no_name_too_long(taccl, folder):
    ranks = ",".join(map(str, range(0, 128, 2)))
    asked = (
        "synth",
        "full:256",
        "broadcast",
        "--ranks",
        ranks,
        "--sizes",
        "1KiB:1KiB",
        "--time-limit",
        "1",
        "-o",
        "pf",
    )
    ended = taccl(*asked)
    assert ended.code == 0, ended
    assert max(len(path.name) for path in (folder / "pf/taccl").iterdir()) < 150


def test_the_same_is_printed_as_json(taccl):
    record = taccl("synth", "ring:3", "broadcast", "--sizes", "1KiB:1MiB", "--json", "--time-limit", "0.5").json
    assert record["files"] == []
    assert record["collective"] == "broadcast"
    assert record["ranges"][0]["min_bytes"] == 1 << 10


def test_a_range_without_a_size_that_any_algorithm_divides_is_refused(refuse):
    """Of 4 ranks' shares every program has 4 chunks at least."""
    words = "none of the sizes from 5 to 6 bytes is a multiple of the program's"
    refuse(5, [words, "ask for a wider range"], "synth", "ring:4", "allgather", "--sizes", "5:6", "--time-limit", "0.5")


def test_sizes_that_ranks_do_not_divide_are_told(taccl):
    """Of 3 ranks' shares none is a power of two in all; instances are chosen for the calls between."""
    words = ("mi300x", "allgather", "--ranks", "0-2", "--time-limit", "0.5")
    ended = taccl("synth", *words, "--sizes", "32MiB:64MiB")
    assert ended.code == 0, ended
    note = "RCCL never uses the file at 64MiB and 1 more of these sizes: a size must be a multiple of"
    assert f"note: {note}" in ended.err
    record = taccl("synth", *words, "--sizes", "32MiB:64MiB", "--json").json
    assert [told.startswith(note) for told in record["notes"]] == [True]
    assert all(each["instances"] > 1 for each in record["ranges"])
    assert all(row["runtime_us"] < 1.2 * row["runtime_bound_us"] for row in record["sizes"])


def test_sizes_between_those_of_calls_join_the_next_file(taccl, folder):
    """A Gather of 8 ranks has whole bytes of each rank; LL128 is given up at 6599993 bytes, where no call is before 6600000."""
    ended = taccl("synth", "dgx1", "gather", "--sizes", "6599990:6600010", "--time-limit", "0.5", "-o", "all")
    assert ended.code == 0, ended
    ranges = json.loads((folder / "all/taccl/gather-0008-both-executor-dgx1-summary.json").read_text())["ranges"]
    assert [each["min_bytes"] for each in ranges[1:]] == [each["max_bytes"] + 1 for each in ranges[:-1]]
    assert (ranges[0]["min_bytes"], ranges[-1]["max_bytes"]) == (6599990, 6600010)
    for path in (folder / "all").glob("*.xml"):
        program = parse_xml(path.read_text(), path.name, RUNTIMES["executor"])
        assert program.min_bytes <= program.max_bytes


def test_there_are_no_more_files_than_the_runtime_loads(taccl, folder):
    """Legacy MSCCL loads four; which five or more would be a little faster does not help it."""
    words = ("--sizes", "1KiB:1MiB", "--time-limit", "0.5", "-o", "all")
    assert taccl("synth", "ring:5", "broadcast", *words, "--runtime", "legacy").code == 0
    assert 2 <= len(list((folder / "all").glob("*.xml"))) <= 4
    assert taccl("check", "--runtime", "legacy", "all").code == 0


def test_more_files_than_the_runtime_loads_are_refused(refuse, folder, monkeypatch):
    """Where even the largest tolerance leaves two files, for two protocols, and one may be loaded."""
    monkeypatch.setitem(RUNTIMES, "legacy", replace(RUNTIMES["legacy"], max_algorithms=1))
    words = ("--sizes", "1KiB:1GiB", "--runtime", "legacy", "--time-limit", "0.5", "-o", "all")
    refuse(5, ["legacy MSCCL loads at most 1; ask for a narrower range"], "synth", "ring:4", "allgather", *words)
    assert not (folder / "all").exists()


def test_an_interrupt_while_plans_by_switch_are_timed_keeps_the_files(taccl, folder, monkeypatch):
    def interrupted(_topology, _kind, _root, sizes):
        signal.raise_signal(signal.SIGINT)
        return [None] * len(sizes)

    monkeypatch.setattr(in_network, "switch_times_us", interrupted)
    words = ("synth", "ndv5", "broadcast", "--size", "1KiB", "--engine", "templates", "-o", "one")
    assert taccl(*words).code == 0
    assert (folder / "one" / "algorithm.xml").is_file()
    words = ("synth", "ndv5", "broadcast", "--sizes", "1KiB:1KiB", "--time-limit", "0.5", "-o", "all")
    assert taccl(*words).code == 0
    assert list((folder / "all").glob("*.xml"))


def test_sizes_at_which_switches_are_faster_are_counted(taccl):
    ended = taccl("synth", "ndv5", "broadcast", "--sizes", "1KiB:4KiB", "--time-limit", "2")
    assert (
        "note: at 3 of 3 sizes plans for MSCCL++ that use what the machine's switches can do are faster (" in ended.err
    )
    assert "taccl lower SCHEDULE.json --to mscclpp-json --switch -o plan.json" in ended.err


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["--size"], ("--size", "1MB")),
        (["--engine"], ("--engine", "milp")),
        (["--max-bytes"], ("--max-bytes", "1MB")),
        (["directory"], ("-o", "one.xml")),
    ],
)
def test_what_contradicts_a_range_is_refused(refuse, words, option):
    refuse(2, words, "synth", "ring:4", "allgather", "--sizes", "1KiB:1MiB", *option)


def test_a_range_that_is_none_is_refused(refuse):
    refuse(2, ["--sizes", "1KiB:1GiB"], "synth", "ring:4", "allgather", "--sizes", "1MiB")
    refuse(2, ["--sizes", "smaller"], "synth", "ring:4", "allgather", "--sizes", "1MiB:1KiB")


def test_a_range_has_more_time_by_default_where_there_are_more_ranks(taccl, monkeypatch):
    found = []

    def give_up(request, *_rest, **_options):
        found.append(request.options.limits.seconds)
        raise LimitReached("enough")

    monkeypatch.setattr("taccl_py.cli.portfolio.synth_portfolio", give_up)
    for ranks in (2, 16, 64, 256):
        assert taccl("synth", f"ring:{ranks}", "allgather", "--sizes", "1KiB:1MiB").code == 3
    assert found == [60.0, 60.0, 240.0, 600.0]


def test_chunks_that_serve_none_of_the_sizes_bar_no_instances(taccl):
    """Three ranks with five chunks each; sizes between those that are asked for are served."""
    runtime = ("--runtime", "rccl", "--runtime-profile", "rccl-mi300x")
    sizes = ("--sizes", "16MiB:32MiB", "--effort", "quick")
    record = taccl("synth", "full:3", "allgather", "--chunks", 5, *sizes, *runtime, "--json").json
    assert {each["instances"] for each in record["ranges"]} == {4}
