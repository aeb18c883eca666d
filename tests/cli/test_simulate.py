"""``taccl simulate``: times of schedules and XML files for one size, many sizes, and all of them."""

import itertools
import json
import shutil

import pytest

from taccl_py.profiles.catalog import load_profile
from taccl_py.profiles.files import profile_to_json
from taccl_py.units import format_rate, format_time
from tests.cli.inputs import PROFILE, TACCL_SKETCH, write_json

XML = ("algorithm.xml", "--topology", "ring:4")
KEYS = {
    "size_bytes", "time_us", "makespan_us", "algbw_gbps", "busbw_gbps",
    "runtime_profile", "runtime_measured", "runtime_us", "runtime_algbw_gbps", "runtime_busbw_gbps",
}  # fmt: skip
UNKNOWN_GPU = (
    "note: times are those of links and ports alone, as the GPU of ring-4 is not known (--runtime-profile names one)\n"
)
PLAN = ("plan.json", "--topology", "ring:4")


@pytest.fixture(scope="module")
def made_of_profile(tmp_path_factory):
    """Folder with a profile of TACCL, a sketch, and a Broadcast's schedule and program, made once."""
    from taccl_py.cli import main

    made = tmp_path_factory.mktemp("profile")
    write_json(made / "p.json", PROFILE)
    write_json(made / "s.json", TACCL_SKETCH)
    words = (
        "synth",
        made / "p.json",
        "broadcast",
        "--sketch",
        made / "s.json",
        "--time-limit",
        0.3,
        "-o",
        made / "out",
    )
    with pytest.raises(SystemExit, match="0"):
        main([str(word) for word in words])
    return made


@pytest.fixture
def profiled(made_of_profile, folder):
    """The folder with those files in it."""
    shutil.copytree(made_of_profile, folder, dirs_exist_ok=True)
    return folder


def times(ended):
    assert ended.code == 0, ended.err
    return {result["size_bytes"]: result["time_us"] for result in ended.json["results"]}


@pytest.mark.parametrize("what", [("schedule.json",), XML], ids=["schedule", "xml"])
@pytest.mark.usefixtures("files")
def test_a_file_takes_the_time_that_the_model_says(taccl, what):
    # Two hops of a quarter of the size each: 2 * (0.5 us + 20 us/MB * size / 4).
    ended = taccl("simulate", *what, "--size", "1MB", "--size", "4KB", "--size", "1GB", "--json")
    found = times(ended)
    assert list(found) == [1_000_000, 4_000, 1_000_000_000]
    for size, time_us in found.items():
        assert time_us == pytest.approx(2 * (0.5 + 20 * size / 4e6))


@pytest.mark.parametrize("what", [("schedule.json",), XML], ids=["schedule", "xml"])
@pytest.mark.usefixtures("files")
def test_json_has_the_stable_keys(taccl, what):
    ended = taccl("simulate", *what, "--size", "1MB", "--json")
    assert ended.err == ("" if what == ("schedule.json",) else UNKNOWN_GPU)
    assert set(ended.json) == {"file", "results"}
    (result,) = ended.json["results"]
    assert set(result) == KEYS
    assert result["algbw_gbps"] == pytest.approx(1e6 / result["time_us"] / 1000)
    assert result["busbw_gbps"] == pytest.approx(result["algbw_gbps"] * 3 / 4)


@pytest.mark.usefixtures("files")
def test_a_schedule_without_a_size_is_replayed_at_its_own(taccl):
    assert times(taccl("simulate", "schedule.json", "--json")) == {1_000_000: pytest.approx(11.0)}


@pytest.mark.usefixtures("files")
def test_an_xml_file_without_a_size_is_replayed_at_1_mb(taccl):
    assert times(taccl("simulate", *XML, "--json")) == {1_000_000: pytest.approx(11.0)}


@pytest.mark.parametrize("what", [("schedule.json",), XML], ids=["schedule", "xml"])
@pytest.mark.usefixtures("files")
def test_a_range_doubles(taccl, what):
    found = times(taccl("simulate", *what, "--sizes", "1KiB:1MiB", "--json"))
    assert list(found) == [1 << power for power in range(10, 21)]
    assert list(found.values()) == sorted(found.values())


@pytest.mark.usefixtures("files")
def test_a_range_of_one_size_is_one_size(taccl):
    assert list(times(taccl("simulate", "schedule.json", "--sizes", "1MB:1MB", "--json"))) == [1_000_000]


@pytest.mark.usefixtures("files")
def test_sizes_and_a_range_are_both_replayed(taccl):
    found = times(taccl("simulate", "schedule.json", "--size", "3MB", "--sizes", "1KiB:2KiB", "--json"))
    assert list(found) == [3_000_000, 1024, 2048]


@pytest.mark.usefixtures("files")
def test_a_table_has_a_row_for_each_size(taccl):
    ended = taccl("simulate", "schedule.json", "--size", "1MB", "--size", "4KB")
    assert ended.err == ""
    for text in ("schedule.json", "976.6KiB", "11 us", "90.9 GB/s", "68.2 GB/s", "3.906KiB", "1.04 us"):
        assert text in ended.out


@pytest.mark.usefixtures("files")
def test_the_curve_goes_through_the_times(taccl):
    pieces = taccl("simulate", "schedule.json", "--curve", "--sizes", "1KiB:1GiB", "--json").json["pieces"]
    assert pieces[0]["from_bytes"] == 1024
    assert pieces[-1]["to_bytes"] == 1 << 30
    for one, two in itertools.pairwise(pieces):
        assert one["to_bytes"] == two["from_bytes"]
    for size, time_us in times(taccl("simulate", "schedule.json", "--sizes", "1KiB:1GiB", "--json")).items():
        piece = next(p for p in pieces if p["from_bytes"] <= size <= p["to_bytes"])
        assert piece["intercept_us"] + piece["us_per_mb"] * size / 1e6 == pytest.approx(time_us)


@pytest.mark.usefixtures("files")
def test_the_curve_is_printed_as_a_table(taccl):
    ended = taccl("simulate", "schedule.json", "--curve")
    assert ended.code == 0
    for text in ("time = a + b * size", "1KiB", "4GiB"):
        assert text in ended.out


@pytest.mark.usefixtures("files")
def test_one_size_has_no_curve(refuse):
    refuse(2, ["--size", "write --sizes"], "simulate", "schedule.json", "--curve", "--size", "1MB")


@pytest.mark.parametrize(
    "options",
    [("--topology", "ring:4"), ("--nodes", 1), ("--sketch", "sk-1"), ("--runtime", "executor")],
    ids=lambda options: options[0],
)
@pytest.mark.usefixtures("files")
def test_a_schedule_carries_its_machine(refuse, options):
    refuse(2, [options[0], "schedule.json", "leave"], "simulate", "schedule.json", *options)


def test_a_wrong_file_is_replayed_when_the_verifier_is_not_asked(taccl, files, made):
    value = json.loads(made["schedule.json"])
    write_json(files / "bad.json", {**value, "messages": value["messages"][:-1]})
    assert taccl("simulate", "bad.json").code == 4
    assert times(taccl("simulate", "bad.json", "--no-check", "--json"))[1_000_000] == pytest.approx(11.0)
    text = made["algorithm.xml"].replace('inplace="1"', 'inplace="0"').replace('outofplace="1"', 'outofplace="0"')
    (files / "bad.xml").write_text(text, encoding="utf-8")
    assert taccl("simulate", "bad.xml", *XML[1:]).code == 4
    assert times(taccl("simulate", "bad.xml", *XML[1:], "--no-check", "--json"))[1_000_000] == pytest.approx(11.0)


@pytest.mark.usefixtures("files")
def test_another_machine_gives_another_time(taccl):
    found = times(taccl("simulate", "algorithm.xml", "--topology", "ring:4,alpha_us=1", "--size", "1MB", "--json"))
    assert found[1_000_000] == pytest.approx(2 * (1 + 5))


@pytest.mark.usefixtures("files")
def test_the_runtime_decides_how_much_a_connection_holds(taccl):
    for runtime in ("executor", "rccl", "legacy"):
        taccl("lower", "schedule.json", "--runtime", runtime, "-o", f"{runtime}.xml")
        ended = taccl(
            "simulate", f"{runtime}.xml", "--topology", "ring:4", "--runtime", runtime, "--size", "1MB", "--json"
        )
        assert times(ended)[1_000_000] >= 11.0 * (1 - 1e-9)


@pytest.mark.parametrize(
    ("runtime", "collective"),
    [
        *itertools.product(("executor", "rccl", "legacy"), ("gather", "scatter", "broadcast", "alltoall", "allreduce")),
    ],
)
def test_a_size_means_the_same_for_a_schedule_and_its_program(taccl, collective, runtime):
    taccl("synth", "full:3", collective, "--runtime", runtime, "-o", "out")
    schedule = times(taccl("simulate", "out/schedule.json", "--size", "3MB", "--json"))
    options = ("--topology", "full:3", "--runtime", runtime, "--size", "3MB", "--json")
    assert times(taccl("simulate", "out/algorithm.xml", *options)) == pytest.approx(schedule)


@pytest.mark.usefixtures("profiled")
def test_a_program_on_a_profile_takes_the_time_of_its_schedule_at_every_size(taccl):
    what = ("out/algorithm.xml", "--topology", "p.json", "--sketch", "s.json")
    for options in ((), ("--sizes", "1KB:1MB")):
        of_schedule = times(taccl("simulate", "out/schedule.json", *options, "--json"))
        assert times(taccl("simulate", *what, *options, "--json")) == pytest.approx(of_schedule)
    assert taccl("simulate", "out/schedule.json", "--curve").code == 0


@pytest.mark.parametrize("name", ["[bold]", "[/x]"])
@pytest.mark.parametrize("options", [(), ("--curve",)], ids=["times", "curve"])
def test_the_name_of_a_file_is_printed_as_it_is(taccl, folder, made, name, options):
    (folder / name).mkdir(parents=True)
    (folder / name / "s.json").write_text(made["schedule.json"], encoding="utf-8")
    ended = taccl("simulate", f"{name}/s.json", *options)
    assert ended.code == 0
    assert f"{name}/s.json" in ended.out


@pytest.mark.usefixtures("files")
def test_a_plan_for_mscclpp_takes_the_time_that_the_model_says(taccl, refuse):
    assert taccl("lower", "schedule.json", "--to", "mscclpp-json", "-o", "plan.json").code == 0
    found = times(taccl("simulate", "plan.json", "--topology", "ring:4", "--size", "1MB", "--size", "1GB", "--json"))
    assert found == {size: pytest.approx(2 * (0.5 + 20 * size / 4e6)) for size in (1_000_000, 1_000_000_000)}
    refuse(2, ["plan.json", "does not say on which machine", "--topology"], "simulate", "plan.json")
    refuse(2, ["--runtime", "plan.json is an MSCCL++ plan"], "simulate", "plan.json", "--runtime", "rccl")
    refuse(2, ["plan.json", "is for 4 ranks", "has 5"], "simulate", "plan.json", "--topology", "ring:5")


@pytest.mark.parametrize(("target", "name"), [("msccl-xml", "some.xml"), ("mscclpp-json", "some.json")])
@pytest.mark.parametrize(
    ("low", "high", "size"), [("1KiB", "128KiB", 131072), ("2MiB", "4MiB", 2 << 20), ("1KiB", "4MiB", 1000000)]
)
@pytest.mark.usefixtures("files")
def test_without_a_size_it_is_one_that_the_file_declares_itself_for(taccl, target, name, low, high, size):
    made = taccl("lower", "schedule.json", "--to", target, "--min-bytes", low, "--max-bytes", high, "-o", name)
    assert made.code == 0, made.err
    for command in ("simulate", "run"):
        (one, *_) = taccl(command, name, "--topology", "ring:4", "--json").json["results"]
        assert one["size_bytes"] == size


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("command", "named"), [("lower", "schedule.json"), ("convert", "algorithm.xml")])
def test_lower_and_convert_of_a_folder_name_the_file_that_they_take(refuse, command, named):
    assert refuse(2, ["is a directory"], command, ".", "-o", "new.xml").endswith(f"name one, such as {named}")


@pytest.mark.parametrize(
    "command", [("show",), ("simulate",), ("run",), ("trace", "-o", "t.json")], ids=lambda each: each[0]
)
def test_a_folder_is_refused_with_the_files_in_it(refuse, files, command):
    (files / "empty").mkdir()
    words = "is a directory, a file is needed; name one, such as schedule.json or algorithm.xml"
    refuse(2, [words], *command, ".")
    assert refuse(2, ["empty"], *command, "empty").endswith("name one")


@pytest.mark.usefixtures("files")
def test_sizes_at_which_no_runtime_takes_the_file_are_told(taccl):
    assert taccl("lower", "schedule.json", "--min-bytes", "4KiB", "--max-bytes", "1MiB", "-o", "some.xml").code == 0
    sizes = ("--size", "1KiB", "--size", "4KiB", "--size", "1MiB", "--size", "2MiB")
    ended = taccl("simulate", "some.xml", "--topology", "ring:4", *sizes)
    assert ended.code == 0
    note = "note: no runtime takes the file at 1KiB, 2MiB, as it declares itself for 4KiB to 1MiB\n"
    assert ended.err == UNKNOWN_GPU + note


# Under a runtime profile


@pytest.fixture
def plan(taccl, files):
    assert taccl("lower", "schedule.json", "--to", "mscclpp-json", "-o", "plan.json").code == 0
    return files


def results(ended):
    assert ended.code == 0, ended.err
    return ended.json["results"]


@pytest.mark.usefixtures("plan")
def test_a_plan_has_a_time_under_a_profile_beside_that_of_links_and_ports(taccl):
    (neutral,) = results(taccl("simulate", *PLAN, "--size", "1MB", "--json"))
    (found,) = results(taccl("simulate", *PLAN, "--size", "1MB", "--json", "--runtime-profile", "mscclpp-h100"))
    assert neutral["runtime_profile"] == "neutral"
    assert neutral["runtime_us"] == neutral["time_us"] == found["time_us"] == pytest.approx(11.0)
    assert neutral["runtime_algbw_gbps"] == neutral["algbw_gbps"]
    assert found["makespan_us"] == found["time_us"]
    assert (found["runtime_profile"], found["runtime_measured"]) == ("mscclpp-h100", False)
    assert found["runtime_us"] > found["time_us"]
    assert found["runtime_algbw_gbps"] == pytest.approx(1e6 / found["runtime_us"] / 1000)
    assert found["runtime_busbw_gbps"] == pytest.approx(found["runtime_algbw_gbps"] * 3 / 4)


@pytest.mark.usefixtures("files")
def test_the_table_says_under_which_profile_times_are(taccl):
    ended = taccl("simulate", *XML, "--size", "1MB", "--runtime-profile", "executor-h100")
    assert (ended.code, ended.err) == (0, "")
    lines = [line.strip() for line in ended.out.splitlines()]
    assert lines[0] == "algorithm.xml: runtime profile executor-h100 (not measured)"
    assert [word.strip() for word in lines[2].strip("┃").split("┃")] == [
        "size",
        "links and ports",
        "runtime",
        "algbw",
        "busbw",
    ]
    size, links, runtime, algbw, busbw = (word.strip() for word in lines[4].strip("│").split("│"))
    (found,) = results(taccl("simulate", *XML, "--size", "1MB", "--runtime-profile", "executor-h100", "--json"))
    assert (size, links) == ("976.6KiB", "11 us")
    assert runtime == format_time(found["runtime_us"])
    assert (algbw, busbw) == (format_rate(found["runtime_algbw_gbps"]), format_rate(found["runtime_busbw_gbps"]))


@pytest.mark.usefixtures("files")
def test_a_table_of_links_and_ports_alone_says_so(taccl):
    assert "algorithm.xml: runtime profile neutral (links and ports alone)" in taccl("simulate", *XML).out
    assert taccl("simulate", *XML, "--runtime-profile", "neutral").err == ""
    assert (
        "schedule.json: links and ports alone, a schedule has no threadblocks" in taccl("simulate", "schedule.json").out
    )


def test_the_machine_decides_on_the_profile(taccl):
    assert taccl("synth", "ndv4", "allgather", "--engine", "templates", "-o", "out").code == 0
    assert taccl("lower", "out/schedule.json", "--to", "mscclpp-json", "-o", "plan.json").code == 0
    assert taccl("lower", "out/schedule.json", "--runtime", "legacy", "-o", "legacy.xml").code == 0
    for file, options, name in [
        ("out/algorithm.xml", (), "executor-a100"),
        ("legacy.xml", ("--runtime", "legacy"), "legacy-a100"),
        ("plan.json", (), "mscclpp-a100"),
    ]:
        ended = taccl("simulate", file, "--topology", "ndv4", *options, "--size", "1MiB", "--json")
        assert results(ended)[0]["runtime_profile"] == name
        assert ended.err == ""
    (found,) = results(taccl("simulate", "out/schedule.json", "--json"))
    assert {found[key] for key in KEYS if key.startswith("runtime_")} == {None}


@pytest.mark.usefixtures("plan")
def test_a_profile_may_be_a_file(taccl, folder):
    value = profile_to_json(load_profile("mscclpp-a100"))
    write_json(folder / "mine.json", {**value, "name": "mine"})
    found, shipped = (
        results(taccl("simulate", *PLAN, "--json", "--runtime-profile", name))[0]
        for name in ("./mine.json", "mscclpp-a100")
    )
    assert found["runtime_us"] == shipped["runtime_us"]
    assert found["runtime_profile"] == "mine"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*PLAN, "--runtime-profile", "mscclpp-h101"), ["--runtime-profile", "did you mean mscclpp-h100"]),
        ((*PLAN, "--runtime-profile", "executor-h100"), ["is of executor", "the runtime is mscclpp", "or neutral"]),
        ((*XML, "--runtime-profile", "mscclpp-h100"), ["is of mscclpp", "the runtime is executor"]),
        ((*XML, "--runtime-profile", "none.json"), ["none.json"]),
        (
            ("schedule.json", "--runtime-profile", "mscclpp-h100"),
            ["schedule.json is a schedule", "no threadblocks", "lower it first"],
        ),
        (("schedule.json", "--curve", "--runtime-profile", "executor-h100"), ["no threadblocks"]),
    ],
)
@pytest.mark.usefixtures("plan")
def test_a_profile_that_does_not_fit_is_refused(refuse, arguments, words):
    refuse(2, words, "simulate", *arguments)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"protocols": {}}, ["protocols", "LL is missing"]),
        ({"nic_message_us": -1.0}, ["nic_message_us", "found -1", "microseconds"]),
        ({"shares": {"nvlink": 1.5}}, ["nvlink", "a share is above 0 and at most 1"]),
        ({"speed": 3}, ["speed"]),
    ],
)
@pytest.mark.usefixtures("plan")
def test_a_wrong_profile_file_is_refused(refuse, folder, change, words):
    write_json(folder / "mine.json", {**profile_to_json(load_profile("mscclpp-a100")), **change})
    refuse(2, ["mine.json", *words], "simulate", *PLAN, "--runtime-profile", "mine.json")


@pytest.mark.usefixtures("profiled")
def test_a_taccl_profile_says_no_gpu_but_takes_the_runtime_profile_of_one(taccl):
    what = ("out/algorithm.xml", "--topology", "p.json", "--sketch", "s.json")
    (found,) = results(taccl("simulate", *what, "--json"))
    assert (found["runtime_profile"], found["runtime_us"]) == ("neutral", found["time_us"])
    (found,) = results(taccl("simulate", *what, "--runtime-profile", "executor-h100", "--json"))
    assert found["runtime_us"] > found["time_us"]
