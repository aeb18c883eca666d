"""Broken topology files, ours in both forms and TACCL's: exit code 2, one sentence that names file and field, nothing written."""

from copy import deepcopy

import pytest

from tests.cli.bad_input import bad, gone, table
from tests.cli.inputs import EXPANDED, MATRICES, NODE_FORM, PROFILE, TACCL_SKETCH, TACCL_SKETCH_OF_ONE, write_json


@pytest.mark.parametrize(
    "case",
    table(
        gone("format"),
        gone("version"),
        gone("name"),
        gone("description"),
        gone("source"),
        gone("network"),
        gone("node.ranks"),
        bad("another format", "format", "taccl-sketch", "taccl-topology"),
        bad("a later version", "version", 2, "version 1"),
        bad("an unknown field", "comment", "hello", "not a known field", "remove it"),
        bad("a misspelt field", "node.link", [], "not a known field", "links"),
        bad("a name that is no text", "name", 5, "a text is needed"),
        bad("an empty name", "name", "", "a text is needed"),
        bad("a node that is a list", "node", [], "an object"),
        bad("no ranks", "node.ranks", 0, "at least 1"),
        bad("half a rank", "node.ranks", 1.5, "a whole number is needed"),
        bad("ranks as text", "node.ranks", "2", "a whole number is needed"),
        bad("ranks that are true", "node.ranks", True, "a whole number is needed"),
        bad("too many ranks", "node.ranks", 1 << 40, "at most"),
        bad("a link to nowhere", "node.links.0.to", [7], "rank 7 does not exist", field="node.links.0.to.0"),
        bad("a link to itself", "node.links.0.to", [0], "two different ranks", field="node.links.0.to.0"),
        bad("a link to no rank", "node.links.0.to", [], "name the ranks"),
        bad("a link to a bare number", "node.links.0.to", 1, "a list"),
        bad("the same link twice", "node.links.0.to", [1, 1], "width", field="node.links.0.to"),
        bad("a link of width 0", "node.links.0.width", 0, "at least 1"),
        bad("a link of huge width", "node.links.0.width", 10**9, "at most 1024"),
        bad("a negative alpha", "node.links.0.alpha_us", -1, "at least 0"),
        bad("an alpha that is null", "node.links.0.alpha_us", None, "found null", "a finite number is needed"),
        bad("a beta that is a text", "node.links.0.beta_us_per_mb", "10", "a finite number is needed"),
        bad("a beta beyond all numbers", "node.links.0.beta_us_per_mb", 10**400, "a finite number is needed"),
        bad("a huge beta", "node.links.0.beta_us_per_mb", 1e308, "at most 1e+12"),
        bad("a huge alpha", "node.links.0.alpha_us", 1e308, "at most 1e+12"),
        bad("beta and bandwidth", "node.links.0.bandwidth_gbps", 100, "keep one"),
        bad("no bandwidth", "node.ports.0.bandwidth_gbps", 0, "above 0"),
        bad("hardly any bandwidth", "node.ports.0.bandwidth_gbps", 1e-320, "write more"),
        bad("a port without direction", "node.links.0.ports", ["bus"], "bus", ".out", field="node.links.0.ports.0"),
        bad("a port twice", "node.links.0.ports", ["bus.out", "bus.in", "bus.out"], "twice", field="node.links.0.ports.2"),
        bad("an unknown port", "node.links.0.ports", ["b.in"], "node.ports", field="node.links.0.ports.0"),
        bad("a port that nobody uses", "node.links.0.ports", [], "bus", "remove it", field="node.ports.0"),
        bad("two devices of one name", "node.nics.0.name", "bus", "already", field="node.nics.0.name"),
        bad("a NIC for a missing rank", "node.nics.0.ranks", [0, 2], "rank 2", field="node.nics.0.ranks.1"),
        bad("a NIC for a rank twice", "node.nics.0.ranks", [0, 0], "twice", field="node.nics.0.ranks.1"),
        bad("a way around for another rank", "node.nics.0.via", {"5": ["bus"]}, "'5'", field="node.nics.0.via.5"),
        bad("a way around twice through one port", "node.nics.0.via", {"1": ["bus", "bus"]}, "twice",
            field="node.nics.0.via.1.1"),
        bad("a way around an unknown port", "node.nics.0.via", {"1": ["x"]}, "'x'", field="node.nics.0.via.1.0"),
        bad("a network without a NIC", "node.nics", [], "nics", field="network"),
        bad("a network to nobody", "network.reach", "some", "all, rail"),
        bad("a symmetry that repeats a rank", "node.symmetry", [[0, 0]], "permutation", field="node.symmetry.0"),
        bad("a node without links", "node.links", [], field="node.ports.0"),
    ),
)  # fmt: skip
def test_a_node_form_with_one_mistake_is_refused(refuse, folder, case):
    refuse(case.code, ["bad.json", case.field, *case.words], "synth", write_json(folder / "bad.json", case.of(NODE_FORM)),
           "allgather", "-o", "out")  # fmt: skip


@pytest.mark.parametrize(
    "case",
    table(
        gone("format"),
        gone("version"),
        gone("name"),
        gone("node_of"),
        gone("links"),
        bad("an unknown field", "comment", 1, "not a known field"),
        bad("no ranks", "node_of", [], "empty list"),
        bad("a node left out", "node_of", [0, 2, 0], "node 1 has no rank"),
        bad("a negative node", "node_of", [0, -1, 0], "at least 0", field="node_of.1"),
        bad("an unknown rank", "links.0.from", 7, "rank 7 does not exist"),
        bad("a rank with a fraction", "links.0.from", 1.0, "a whole number is needed"),
        bad("a link to its own start", "links.0.to", 0, "two different ranks"),
        bad("a negative beta", "links.0.beta_us_per_mb", -0.5, "at least 0"),
        bad("a negative latency", "links.0.latency_us", -1, "at least 0"),
        bad("a huge latency", "links.0.latency_us", 1e308, "at most 1e+12"),
        bad("a tiny beta", "links.0.beta_us_per_mb", 1e-300, "at least 1e-30"),
        bad("a huge alpha", "links.0.alpha_us", 1e308, "at most 1e+12"),
        bad("an unknown port", "links.0.ports", [1], "there are 1 ports", field="links.0.ports.0"),
        bad("a port twice", "links.0.ports", [0, 0], "twice", field="links.0.ports.1"),
        bad("two ports of one name", "ports", [{"name": "p", "alpha_us": 0, "beta_us_per_mb": 1}] * 2, "unique",
            field="ports.1.name"),
        bad("a port of negative cost", "ports.0.alpha_us", -1, "at least 0"),
        bad("a rank that is cut off", "links", EXPANDED["links"][:3], "cannot be reached", "add links"),
        bad("no link at all", "links", [], "cannot be reached", "add links"),
        bad("a symmetry of too few ranks", "symmetry", [[1, 0]], "permutation", field="symmetry.0"),
        bad("a size that nothing was measured with", "measured_chunk_bytes", 0, "a whole number of at least 1 is needed"),
        bad("chunk costs that are a number", "chunk_costs", 1, "true or false is needed"),
    ),
)  # fmt: skip
def test_an_expanded_form_with_one_mistake_is_refused(refuse, folder, case):
    refuse(case.code, ["bad.json", case.field, *case.words], "synth", write_json(folder / "bad.json", case.of(EXPANDED)),
           "allgather", "-o", "out")  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("bandwith_gbps", ["node.links.0.bandwidth_gbps", "did you mean it by bandwith_gbps?"]),
        ("beta_per_mb", ["node.links.0.beta_us_per_mb", "did you mean it by beta_per_mb?"]),
        ("speed", ["node.links.0.beta_us_per_mb", "is missing; add it or bandwidth_gbps"]),
        ("netwrk", ["network", "did you mean it by netwrk?"]),
    ],
)
def test_a_misspelt_name_of_a_field_that_is_needed_is_told(refuse, folder, wrong, words):
    value = deepcopy(NODE_FORM)
    if wrong == "netwrk":
        value[wrong] = value.pop("network")
    else:
        value["node"]["links"][0][wrong] = value["node"]["links"][0].pop("beta_us_per_mb")
    refuse(2, words, "topo", "show", write_json(folder / "bad.json", value))


def test_a_link_that_costs_nothing_is_refused(refuse, folder):
    value = {**EXPANDED, "links": [{"from": 0, "to": 1, "alpha_us": 0, "beta_us_per_mb": 0}]}
    refuse(2, ["bad.json", "links.0", "give it a cost"], "topo", "show", write_json(folder / "bad.json", value))


def test_a_machine_in_expanded_form_is_not_multiplied(refuse, folder):
    name = write_json(folder / "machine.json", EXPANDED)
    refuse(2, [name, "node_of", "leave the number out"], "synth", name, "allgather", "--nodes", 2, "-o", "out")


def test_a_node_without_a_nic_is_not_multiplied(refuse, folder):
    value = {key: part for key, part in NODE_FORM.items() if key != "network"}
    value["node"] = {key: part for key, part in value["node"].items() if key != "nics"}
    name = write_json(folder / "machine.json", value)
    refuse(2, [name, "no NICs", "ask for 1 node"], "synth", name, "allgather", "--nodes", 2, "-o", "out")


@pytest.mark.parametrize(
    "case",
    table(
        gone("name"),
        gone("alpha"),
        gone("node_betas_list"),
        gone("node_invbws_list"),
        gone("nics_per_node"),
        gone("remote_alpha"),
        gone("remote_beta"),
        bad("an unknown field", "remote_gamma", 1, "not a known field"),
        bad("no GPUs", "gpus_per_node", 0, "at least 1"),
        bad("no betas", "node_betas_list", [], "1 is for DGX2"),
        bad("more betas than costs", "node_betas_list", [1, 2], "has 2", field="node_invbws_list"),
        bad("a negative beta", "node_betas_list", [-1], "at least 0", field="node_betas_list.0"),
        bad("an inverse bandwidth below beta", "node_invbws_list", [9.0], "less than its beta",
            field="node_invbws_list.0"),
        bad("a huge cost", "node_invbws_list", [1e308], "at most 1e+12", field="node_invbws_list.0"),
        bad("no NIC", "nics_per_node", 0, "at least 1"),
        bad("a negative remote cost", "remote_beta", -1, "at least 0"),
        bad("chunks of no size", "chunk_bytes", 0, "found 0, a whole number of at least 1 is needed"),
        bad("a size in words", "chunk_bytes", "1MB", "found the text '1MB', a whole number is needed"),
        bad("a name with no size", "name", "hub_0KB", "'0KB' is not a positive whole number of bytes"),
        bad("no unit of time", "unit_us", 0, "a number above 0 is needed"),
    ),
)  # fmt: skip
def test_a_profile_of_taccl_with_one_mistake_is_refused(refuse, folder, case):
    name = write_json(folder / "bad.json", case.of(PROFILE))
    sketch = write_json(folder / "sketch.json", TACCL_SKETCH)
    refuse(case.code, [name, case.field, *case.words], "synth", name, "allgather", "--sketch", sketch, "-o", "out")


@pytest.mark.parametrize(
    "case",
    table(
        gone("betas"),
        gone("invbws"),
        bad("a row too few", "links", [[0, 1]], "found 1 rows"),
        bad("a number too few", "links", [[0, 1], [1]], "found 1 numbers", field="links.1"),
        bad("half a link", "links", [[0, 0.5], [1, 0]], "whole", field="links.0.1"),
        bad("a link to itself", "links", [[1, 1], [1, 0]], "write 0", field="links.0.0"),
        bad("a row that is no list", "links", ["x", [1, 0]], "a list", field="links.0"),
        bad("more links than memory", "links", [[0, 1e300], [1, 0]], "at most 1024", field="links.0.1"),
        bad("one way only", "links", [[0, 1], [0, 0]], "cannot be reached", field="links"),
    ),
)  # fmt: skip
def test_a_profile_with_matrices_and_one_mistake_is_refused(refuse, folder, case):
    name = write_json(folder / "bad.json", case.of(MATRICES))
    sketch = write_json(folder / "sketch.json", TACCL_SKETCH_OF_ONE)
    refuse(case.code, [name, case.field, *case.words], "synth", name, "allgather", "--sketch", sketch, "-o", "out")


def test_a_profile_without_a_sketch_is_refused(refuse, folder):
    name = write_json(folder / "profile.json", PROFILE)
    refuse(2, [name, "--sketch"], "synth", name, "allgather", "-o", "out")


def test_a_profile_with_a_sketch_for_any_number_of_nodes_asks_for_the_number(refuse, folder):
    name = write_json(folder / "profile.json", PROFILE)
    sketch = write_json(folder / "sketch.json", {"format": "taccl-sketch", "version": 1, "name": "any"})
    refuse(2, [name, "--nodes"], "synth", name, "allgather", "--sketch", sketch, "-o", "out")
