"""``taccl topo``: topologies listed, shown, written, and read back."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from taccl_py.topology.catalog import list_topologies, load_topology
from taccl_py.topology.files import read_topology, topology_to_json
from taccl_py.topology.machines import SHAPES
from taccl_py.units import format_count
from tests.cli.inputs import EXPANDED, NODE_FORM, PROFILE, TACCL_SKETCH, changed, write_json
from tests.discover import dumps
from tests.measure.test_foreign import P2P

SHIPPED = [entry.name for entry in list_topologies()]


def test_the_list_has_every_machine_and_every_formula(taccl):
    ended = taccl("topo", "list")
    assert (ended.code, ended.err) == (0, "")
    for name in (*SHIPPED, *(shape.example for shape in SHAPES)):
        assert name in ended.out


def test_the_list_as_json(taccl):
    record = taccl("topo", "list", "--json").json
    assert set(record) == {"topologies", "formulas"}
    assert [entry["name"] for entry in record["topologies"]] == SHIPPED
    assert {tuple(entry) for entry in record["topologies"]} == {("name", "description", "ranks_per_node", "multi_node")}
    assert [entry["example"] for entry in record["formulas"]] == [shape.example for shape in SHAPES]
    assert {tuple(entry) for entry in record["formulas"]} == {("name", "example", "description")}


@pytest.mark.parametrize("name", [*SHIPPED, *(shape.example for shape in SHAPES)])
def test_every_machine_is_shown(taccl, name):
    ended = taccl("topo", "show", name)
    assert (ended.code, ended.err) == (0, "")
    topology = load_topology(name)
    nodes = format_count(topology.num_nodes, "node")
    inside = ", a network inside" if name.startswith(("dragonfly", "fattree")) else ""
    assert ended.out.startswith(f"{topology.name}: {topology.num_ranks} ranks in {nodes}{inside}\n")
    assert "Links" in ended.out
    assert taccl("topo", "show", name, "--json").json == json.loads(json.dumps(topology_to_json(topology)))


@pytest.mark.parametrize("name", [entry.name for entry in list_topologies() if entry.multi_node])
def test_several_nodes_are_shown(taccl, name):
    for arguments in ((name, "--nodes", 2), (f"{name}-x2",)):
        ended = taccl("topo", "show", *arguments)
        assert ended.code == 0
        assert f"{name}-x2: " in ended.out
        assert "2 nodes" in ended.out
        assert "between nodes" in ended.out
        assert "Ports" in ended.out


def test_costs_are_shown_in_figures(taccl, folder):
    out = taccl("topo", "show", write_json(folder / "machine.json", NODE_FORM), "--nodes", 2).out
    row = next(line for line in out.splitlines() if "inside a node" in line)
    assert [cell.strip() for cell in row.split("│")[1:9]] == [
        "inside a node",
        "4",
        "1",
        "10",
        "100",
        "0",
        "0-3",
        "0->1",
    ]
    row = next(line for line in out.splitlines() if "between nodes" in line)
    assert [cell.strip() for cell in row.split("│")[1:9]] == [
        "between nodes",
        "8",
        "2",
        "40",
        "25",
        "0.5",
        "0-3",
        "0->2",
    ]


@pytest.mark.parametrize("arguments", [("ndv2", "--nodes", 2), ("torus:2x3",), ("dgx1",), ("mi300x-x2",)])
def test_a_file_that_show_writes_reads_back_as_the_same_machine(taccl, folder, arguments):
    ended = taccl("topo", "show", *arguments, "-o", "out/machine.json")
    assert (ended.code, ended.out, ended.err) == (0, "", "wrote out/machine.json\n")
    name, *options = arguments
    expected = load_topology(name, options[1] if options else None)
    assert read_topology(folder / "out/machine.json") == expected
    shown, again = taccl("topo", "show", *arguments), taccl("topo", "show", "out/machine.json")
    assert again.out == shown.out


def test_what_show_prints_as_json_can_be_used_as_a_topology(taccl, folder):
    (folder / "ring.json").write_text(taccl("topo", "show", "ring:4", "--json").out, encoding="utf-8")
    here = taccl("synth", "ring:4", "allgather", "--json").json
    there = taccl("synth", "ring.json", "allgather", "--json").json
    for record in (here, there):
        del record["solver_seconds"], record["stage_seconds"], record["command"]
    assert here == there


def test_json_and_a_file_at_once(taccl, folder):
    ended = taccl("topo", "show", "ring:4", "--json", "-o", "ring.json")
    assert ended.json == json.loads((folder / "ring.json").read_text(encoding="utf-8"))
    assert ended.err == "wrote ring.json\n"


def test_a_machine_of_ones_own_in_both_forms(taccl, folder):
    for value, ranks in ((NODE_FORM, 2), (EXPANDED, 3)):
        out = taccl("topo", "show", write_json(folder / "machine.json", value)).out
        assert out.startswith(f"{value['name']}: {ranks} ranks in 1 node\nsource: invented for tests\n")


def test_a_profile_of_taccl_is_completed_by_a_sketch(taccl, folder):
    profile, sketch = write_json(folder / "p.json", PROFILE), write_json(folder / "s.json", TACCL_SKETCH)
    ended = taccl("topo", "show", profile, "--sketch", sketch)
    assert "hub-x2: 8 ranks in 2 nodes" in ended.out
    assert "beta us/MB" in ended.out
    taccl("topo", "show", profile, "--sketch", sketch, "-o", "machine.json")
    assert read_topology(folder / "machine.json").measured_chunk_bytes == 1_000_000


def test_a_profile_alone_is_refused(refuse, folder):
    refuse(2, ["p.json", "--sketch"], "topo", "show", write_json(folder / "p.json", PROFILE))


def test_a_directory_in_place_of_the_file_is_refused(refuse, folder):
    (folder / "out.json").mkdir()
    refuse(2, ["out.json", "directory"], "topo", "show", "ring:4", "-o", "out.json")


def test_a_shipped_name_means_the_shipped_machine_whatever_lies_about(taccl):
    Path("ndv9").write_text("mine")
    assert taccl("topo", "show", "ndv2").code == 0


@pytest.mark.parametrize("name", ["ndv2", "ring:4"])
def test_a_file_with_a_shipped_name_does_not_hide_the_machine(taccl, name):
    Path(name).write_text("mine")
    assert taccl("topo", "show", name).code == 0


@pytest.mark.parametrize("name", ["a [bold] port", "a port [/b]"])
def test_names_of_ports_are_printed_as_they_are(taccl, folder, name):
    ended = taccl("topo", "show", write_json(folder / "machine.json", changed(EXPANDED, "ports.0.name", name)))
    assert ended.code == 0
    assert name in ended.out


def test_ports_are_in_the_order_of_their_numbers(taccl):
    out = taccl("topo", "show", "dgx2", "--nodes", 2).out
    ports = re.findall(r"node [\d,-]+ [\w ,-]+ (?:in|out)\b", out)
    both = ["node 0-1 ib0-7 in", "node 0-1 ib0-7 out"]
    assert ports == [*both, "node 0-1 rank 0-31 nvswitch in", "node 0-1 rank 0-31 nvswitch out"]
    ports = re.findall(r"group \d+ to", taccl("topo", "show", "dragonfly:3").out)
    assert ports == [f"group {group} to" for group in range(19)]


@pytest.mark.parametrize("name", ["a [bold] machine", "a machine [/b]"])
def test_names_of_machines_are_printed_as_they_are(taccl, folder, name):
    machine = write_json(folder / "machine.json", changed(EXPANDED, "name", name))
    ended = taccl("synth", machine, "allgather", "--time-limit", 0.2)
    assert ended.code == 0
    assert name in ended.out


@pytest.mark.parametrize(
    "command",
    [("topo", "show", "bad.json"), ("synth", "bad.json", "allgather", "--time-limit", 0.2)],
    ids=lambda c: c[0],
)
def test_a_name_that_is_no_text_is_refused(folder, command):
    from tests.cli.running import run_apart

    write_json(folder / "bad.json", changed(EXPANDED, "name", "\ud800"))
    ended = run_apart(*command, cwd=folder)
    assert ended.code in (0, 2)
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_tables_can_be_printed_in_every_encoding(folder, encoding):
    from tests.cli.running import run_apart

    ended = run_apart("topo", "list", cwd=folder, env={"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"})
    assert ended.code == 0, ended.err
    assert "ndv2" in ended.out


def test_a_dump_becomes_a_node_that_other_commands_multiply(taccl, folder):
    (folder / "dump.xml").write_text(dumps.nvswitch_node())
    ended = taccl("topo", "import", "dump.xml", "--name", "mine", "-o", "mine.json")
    assert (ended.code, ended.out, ended.err) == (0, "", "wrote mine.json\n")
    assert "mine-x3: 24 ranks in 3 nodes" in taccl("topo", "show", "mine.json", "--nodes", 3).out
    assert taccl("topo", "import", "dump.xml", "--name", "mine", "--json").json == json.loads(
        Path("mine.json").read_text()
    )


def test_an_import_without_output_is_shown_with_where_its_figures_come_from(taccl, folder):
    (folder / "matrix.txt").write_text(dumps.dgx1_matrix())
    out = taccl("topo", "import", "matrix.txt", "--nodes", 2).out
    assert "matrix-x2: 16 ranks in 2 nodes" in out
    assert "not measured" in out


def test_a_guessed_gpu_is_told_on_the_terminal_and_one_that_is_named_is_not(taccl, folder):
    (folder / "tray.txt").write_text(dumps.nvlink_matrix([18] * 4))
    guessed = taccl("topo", "import", "tray.txt", "-o", "guess.json")
    assert re.match(r"note: the GPU is a guess by its 18 NVLinks: h100, 20.6 GB/s a link; .*b200.*--gpu\n", guessed.err)
    node = json.loads((folder / "guess.json").read_text("utf-8"))
    assert node["node"]["gpu"] == "h100"
    assert "h100, 20.6 GB/s a link" in node["source"]
    named = taccl("topo", "import", "tray.txt", "--gpu", "b200", "-o", "named.json")
    assert named.err == "wrote named.json\n"
    assert taccl("compare", "named.json", "allgather", "--sizes", "1KiB:1KiB", "--time-limit", 1, "--json").json[
        "nccl_tuner"
    ]["gpu"] == "blackwell"  # fmt: skip


def test_what_joins_gpus_is_said_where_files_do_not(taccl, folder):
    write_json(folder / "graph.json", dumps.networkx_leaf_spine())
    assert "inside: unknown" in taccl("topo", "import", "graph.json").out
    assert taccl("topo", "import", "graph.json", "--inside", "pcie", "--json").json["inside"] == "pcie"
    (folder / "p2p.txt").write_text(P2P)
    for options, inside in (((), "unknown"), (("--inside", "pcie"), "pcie")):
        ended = taccl("topo", "fit", "p2p.txt", *options, "-o", "mine.json")
        assert "note: the samples of some links are bandwidths of one size" in ended.err
        assert json.loads((folder / "mine.json").read_text("utf-8"))["inside"] == inside
        assert taccl("synth", "mine.json", "allgather", "--size", "256KiB", "-o", "out").code == 0
        assert "LL128" not in (folder / "out" / "algorithm.xml").read_text("utf-8")


def test_near_nics_are_said_where_files_do_not_say_them(taccl, folder):
    (folder / "matrix.txt").write_text(dumps.switched_matrix(8, 12, 8))
    assert "near_nics" not in taccl("topo", "import", "matrix.txt", "--json").json["node"]
    assert taccl("topo", "import", "matrix.txt", "--near-nics", "--json").json["node"]["near_nics"] is True
    assert "NICs: not known to be near" in taccl("topo", "import", "matrix.txt", "--nodes", 2).out
    assert "NICs:" not in taccl("topo", "import", "matrix.txt", "--nodes", 2, "--near-nics").out
    (folder / "p2p.txt").write_text(P2P)
    taccl("topo", "fit", "p2p.txt", "--near-nics", "-o", "mine.json")
    assert json.loads((folder / "mine.json").read_text("utf-8"))["near_nics"] is True


def test_a_profile_of_taccl_is_imported_as_one_node(taccl, folder):
    path = write_json(folder / "p.json", PROFILE)
    assert taccl("topo", "import", path, "--json").json["measured_chunk_bytes"] == 1_000_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("missing.xml",), ["missing.xml", "no such file"]),
        (("bad.txt",), ["bad.txt", "--format"]),
        (("dump.xml", "--format", "nvidia-smi"), ["dump.xml", "nvidia-smi topo -m"]),
        (("bad.txt", "--format", "nccl"), ["bad.txt", "is not XML"]),
        (("dump.xml", "--gpu", "z9"), ["--gpu", "'z9' is no GPU that is known", "v100 (volta)"]),
        (("dump.xml", "graph.json"), ["graph.json", "whole machine"]),
        (("graph.json", "--nodes", 2), ["--nodes", "graph.json", "leave it out"]),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_what_cannot_be_imported_is_refused(refuse, folder, arguments, words):
    (folder / "bad.txt").write_text("nothing of interest")
    (folder / "dump.xml").write_text(dumps.nvswitch_node())
    write_json(folder / "graph.json", dumps.networkx_leaf_spine())
    refuse(2, words, "topo", "import", *arguments, "-o", "out.json")


def test_a_gpu_has_the_same_names_wherever_it_is_asked_for(taccl, refuse, folder):
    (folder / "topo-m.txt").write_text(dumps.dgx1_matrix())
    import_of = ("topo", "import", "topo-m.txt", "--json", "--gpu")
    compare = ("compare", "full:2", "allgather", "--sizes", "1KiB:1KiB", "--time-limit", 1, "--json", "--gpu")
    machines = {name: taccl(*import_of, name).json for name in ("a100", "Ampere", "h100")}
    assert machines["a100"] == machines["Ampere"] != machines["h100"]
    assert [taccl(*compare, name).json["nccl_tuner"]["gpu"] for name in ("a100", "ampere", "p100")] == [
        "ampere", "ampere", "volta",
    ]  # fmt: skip
    refuse(2, ["--gpu", "'z9' is no GPU that is known", "v100 (volta)"], *compare, "z9")
    refuse(2, ["--gpu", "NCCL does not run on mi300x"], *compare, "mi300x")


def test_differences_are_told_and_a_check_fails_only_where_it_is_worse(taccl, refuse, folder):
    half = taccl("topo", "show", "ring:4", "--json").json
    half["links"][0]["beta_us_per_mb"] *= 2
    write_json(folder / "half.json", half)
    ended = taccl("topo", "diff", "ring:4", "half.json")
    assert ended.code == 0
    assert "1 differences, 1 for the worse" in ended.out
    assert "link 0->1" in ended.out
    record = taccl("topo", "diff", "ring:4", "half.json", "--json").json
    assert [(one["what"], one["change"], one["worse"]) for one in record["differences"]] == [
        ("link 0->1", "slower", True)
    ]
    failed = taccl("topo", "diff", "ring:4", "half.json", "--check")
    assert failed.code == 4
    assert failed.sentence == "half.json: link 0->1 is slower; repair it, or record the machine again [drift]"
    assert taccl("topo", "diff", "half.json", "ring:4", "--check").code == 0
    assert taccl("topo", "diff", "ring:4", "half.json", "--tolerance", 1, "--check").code == 0
    refuse(2, ["ring:5", "5 ranks"], "topo", "diff", "ring:4", "ring:5")


@pytest.mark.parametrize("command", ["topo diff ring:4 ring:4 --tolerance", "profile --emulate ring:4 --noise"])
def test_numbers_that_are_none_are_refused(taccl, command):
    """No difference is above nan, and so a link of half the rate was no drift; noise of nan ended in a traceback."""
    done = taccl(*command.split(), "nan")
    assert done.code == 2
    assert f"'{command.split()[-1]}': nan is not a finite number" in done.sentence


def test_synthesis_goes_around_links_that_are_missing(taccl, refuse):
    record = taccl(
        "synth", "ring:4", "allgather", "--without-link", "0-1", "--time-limit", 1, "--json", "-o", "out"
    ).json
    schedule = json.loads(Path("out/schedule.json").read_text())
    pairs = {(link["from"], link["to"]) for link in schedule["topology"]["links"]}
    assert {(0, 1), (1, 0)}.isdisjoint(pairs)
    whole = taccl("bound", "ring:4", "allgather", "--json").json["results"][0]["bound_us"]
    less = taccl("bound", "ring:4", "allgather", "--without-link", "0-1", "--json").json["results"][0]["bound_us"]
    assert record["makespan_us"] >= less > whole
    slow = taccl("bound", "ring:4", "allgather", "--slow-link", "0-1:0.1", "--json").json["results"][0]["bound_us"]
    assert slow > whole
    refuse(2, ["--without-link", "ring-4 has no link 0-2"], "bound", "ring:4", "allgather", "--without-link", "0-2")
    refuse(2, ["--slow-link", "'0-1'"], "synth", "ring:4", "allgather", "--slow-link", "0-1")
    refuse(2, ["--without-port", "has no port 'nic'"], "bound", "ndv4", "allgather", "--without-port", "nic")
    refuse(2, ["--slow-port", "'nic'"], "synth", "ndv4", "allgather", "--slow-port", "nic")


def test_a_group_needs_no_rank_outside_of_it(taccl, refuse):
    """What is cut off counts for groups that hold it: 0.5 us and 20 us/MB for the half MB that each of ranks 0 and 1 lacks."""
    cut = ("--without-link", "2-3", "--size", "1MB", "--json")
    (row,) = taccl("bound", "mesh:4", "allgather", "--ranks", "0-1", *cut).json["results"]
    assert row["bound_us"] == pytest.approx(10.5)
    refuse(2, ["--without-link", "rank 3 cannot be reached"], "bound", "mesh:4", "allgather", *cut)
    refuse(3, ["leads from rank 2 to rank 3"], "bound", "mesh:4", "allgather", "--ranks", "2-3", *cut)


def test_samples_become_a_topology_with_its_errors_told(taccl, refuse, folder):
    rows = [
        f"{a},{b},{size},{3 + size / 50_000}"
        for a in range(3)
        for b in range(3)
        if a != b
        for size in (10**3, 10**6, 10**7)
    ]
    (folder / "s.csv").write_text("\n".join(["src,dst,size_bytes,time_us", *rows]))
    ended = taccl("topo", "fit", "s.csv", "-o", "mine.json")
    assert ended.code == 0
    assert "0->1" in ended.out
    assert {(round(k.alpha_us, 6), round(k.beta_us_per_mb, 6)) for k in read_topology(folder / "mine.json").links} == {
        (3, 20)
    }
    record = taccl("topo", "fit", "s.csv", "--by", "class", "--json").json
    assert [(fit["links"], fit["lines"][0]["points"]) for fit in record["fits"]] == [("inside a node", 18)]
    assert taccl("synth", "mine.json", "allgather", "--time-limit", 0.5).code == 0
    refuse(2, ["--nodes", "no multiple"], "topo", "fit", "s.csv", "--nodes", 2)
    refuse(2, ["none.csv"], "topo", "fit", "none.csv")
    (folder / "one.csv").write_text("src,dst,size_bytes,time_us\n0,1,8,1\n")
    refuse(2, ["one.csv", "0->1", "at least two"], "topo", "fit", "one.csv")


def test_fit_warns_of_samples_that_no_line_predicts(taccl, folder):
    """0->1 takes 4 us whatever its size; 1->0 10, 40 and 10 us, from which the best line, which is level, is far off."""
    rows = ["src,dst,size_bytes,time_us", "0,1,1000,4", "0,1,1000000,4", "0,1,2000000,4"]
    (folder / "level.csv").write_text("\n".join([*rows, "1,0,1000,4", "1,0,1000000,14", "1,0,2000000,24"]) + "\n")
    ended = taccl("topo", "fit", "level.csv")
    assert ended.code == 0
    assert ended.err.count("warning") == 1
    assert "links 0->1 do not grow with the size" in ended.err
    (folder / "wild.csv").write_text("\n".join([*rows, "1,0,1000,10", "1,0,1000000,40", "1,0,2000000,10"]) + "\n")
    ended = taccl("topo", "fit", "wild.csv", "--json")
    assert "links 0->1" in ended.err
    assert "% off the lines" in ended.err
    assert len(ended.json["fits"]) == 2


def test_tables_of_many_rows_say_that_there_are_more(taccl):
    """ndv4 and ndv5 differ in 56 links and 16 ports."""
    table = taccl("topo", "diff", "ndv4", "ndv5")
    assert "72 differences, 0 for the worse, 64 of 72 rows; --json shows all" in table.out
    assert len(taccl("topo", "diff", "ndv4", "ndv5", "--json").json["differences"]) == 72


def test_a_difference_in_latency_is_seen(taccl):
    """Routers of a ring of 4 take 0.1 us for the second hop, or 0.3; direct links have none."""
    table = taccl("topo", "diff", "ring:4,routed", "ring:4,routed,hop_us=0.3").out
    assert "latency us before" in table
    assert "0->2" in table
    assert "0.3" in table
    assert "latency" not in taccl("topo", "diff", "ring:4", "ring:4,alpha_us=1").out


def test_fit_infers_the_port_that_flows_shared(taccl, folder):
    """1 us + 10 us/MB alone; the two flows out of rank 0 take twice as long together."""
    rows = ["src,dst,size_bytes,time_us,serial,together"]
    for src, dst in ((0, 1), (0, 2), (1, 0), (2, 0)):
        rows += [f"{src},{dst},{size},{16 * (1 + size / 1e5)},16," for size in (1000, 10**6)]
    rows += [
        f"0,{dst},{size},{(30 + dst) * (1 + size / 1e5)},16,out {size}" for size in (1000, 10**6) for dst in (1, 2)
    ]
    (folder / "samples.csv").write_text("\n".join(rows) + "\n")
    (port,) = taccl("topo", "fit", "samples.csv", "--json").json["ports"]
    assert (port["links"], round(port["alpha_us"], 6), round(port["beta_us_per_mb"], 6)) == (2, 1, 10)
    assert "links that share it" in taccl("topo", "fit", "samples.csv").out


def test_nodes_that_number_their_gpus_differently_are_measured_and_aligned(taccl, folder):
    """Two NDv2 nodes, the second of which counts backwards: seen through noise, put in order, and symmetric again."""
    machine = load_topology("ndv2", 2)
    odd = replace(machine.subset([*range(8), *range(15, 7, -1)]), symmetry=())
    write_json(folder / "odd.json", topology_to_json(odd))
    measured = taccl("profile", "--emulate", "odd.json", "--noise", 0.005, "-o", "measured.json")
    assert "taccl topo align measured.json" in measured.err
    aligned = taccl("topo", "align", "measured.json", "-o", "aligned.json", "--json").json
    assert aligned["changes"]
    assert "1,0" not in taccl("topo", "align", "aligned.json").out
    assert "which is how they are numbered" in taccl("topo", "align", "aligned.json").out
    assert taccl("synth", "aligned.json", "allgather", "--time-limit", 1, "--only-schedule", "--json").code == 0
    (image,) = json.loads((folder / "aligned.json").read_text(encoding="utf-8"))["symmetry"]
    assert image == [*range(8, 16), *range(8)]


def test_one_node_cannot_be_aligned(refuse):
    refuse(2, ["ndv2", "one node"], "topo", "align", "ndv2")
