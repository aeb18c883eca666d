"""Runtime profile files: what is read is what was written, every shipped file holds, and what is wrong is said in one sentence."""

import copy
import json
import math
from dataclasses import replace

import pytest

from taccl_py.errors import InputError
from taccl_py.jsonio import canonical_json
from taccl_py.profiles.catalog import list_profiles, load_profile, neutral_profile, select_profile
from taccl_py.profiles.files import PROTOCOLS_OF, profile_from_json, profile_to_json, read_profile
from taccl_py.profiles.model import COST_FIELDS, PROTOCOL_FIELDS, UNLIMITED
from taccl_py.runtimes import RUNTIMES
from taccl_py.topology.catalog import load_topology

SHIPPED = list_profiles()
each_shipped = pytest.mark.parametrize("profile", SHIPPED, ids=[one.name for one in SHIPPED])


def test_the_promised_profiles_are_shipped():
    assert {one.name for one in SHIPPED} >= {
        "neutral", "rccl-mi300x", "rccl-mi250x", "executor-v100", "executor-a100", "executor-h100", "executor-b200", "legacy-v100",
        "legacy-a100", "mscclpp-a100", "mscclpp-h100",
    }  # fmt: skip


@each_shipped
def test_a_file_comes_back_as_it_was(profile, tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(canonical_json(profile_to_json(profile)))
    again = read_profile(path)
    assert again == profile
    assert again.figures == profile.figures


@each_shipped
def test_a_shipped_profile_is_named_after_what_it_is_of(profile):
    assert load_profile(profile.name) is profile
    assert profile.is_neutral == (profile.name == "neutral")
    if not profile.is_neutral:
        assert profile.name == f"{profile.runtime}-{profile.gpu}"
    assert all(figure.source for figure in profile.figures.values())


@each_shipped
def test_every_protocol_is_there_with_possible_values(profile):
    assert tuple(profile.protocols) == PROTOCOLS_OF.get(profile.runtime, ("LL", "LL128", "Simple"))
    for costs in profile.protocols.values():
        assert all(getattr(costs, name) >= 0 for name in PROTOCOL_FIELDS)
        assert costs.wire >= 1
        assert costs.is_neutral == profile.is_neutral
    assert all(0 < share.value <= 1 for share in profile.shares.values())


@pytest.mark.parametrize("runtime", RUNTIMES.values(), ids=list(RUNTIMES))
def test_limits_are_those_of_the_runtime(runtime):
    of_runtime = [one for one in SHIPPED if one.runtime == runtime.name]
    assert of_runtime
    for profile in of_runtime:
        assert {name: costs.payload_bytes for name, costs in profile.protocols.items()} == runtime.payload_bytes
        assert {name: costs.slots for name, costs in profile.protocols.items()} == runtime.fifo_slots
        assert profile.most_threadblocks <= runtime.max_threadblocks


def test_no_cost_is_called_measured_that_was_not():
    measured = {
        one.name
        for one in SHIPPED
        if any(figure.measured for place, figure in one.figures.items() if place.startswith("protocols/"))
    }
    assert measured == {"rccl-mi300x"}
    figures = load_profile("rccl-mi300x").figures
    assert figures["protocols/Simple/tb_gbps"].measured
    assert not figures["protocols/Simple/hop_far_us"].measured
    assert load_profile("rccl-mi300x").evidence == "partly measured"


def test_the_neutral_profile_has_no_costs_and_no_limits():
    neutral = neutral_profile()
    for costs in neutral.protocols.values():
        assert all(getattr(costs, name) in (0, 1, UNLIMITED) for name in COST_FIELDS)
        assert costs.payload_bytes == costs.slots == math.inf


def written(**changes):
    """Form of a profile; a change of `protocols__LL__op_us` goes to that place, and None takes the field away."""
    form = copy.deepcopy(profile_to_json(load_profile("rccl-mi300x")))
    for place, value in changes.items():
        *parents, last = place.split("__")
        target = form
        for parent in parents:
            target = target[parent]
        if value is None:
            del target[last]
        else:
            target[last] = value
    return form


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"format": "taccl-topology"}, "taccl-runtime-profile"),
        ({"version": 2}, "version"),
        ({"name": "a b"}, "name: found 'a b'"),
        ({"runtime": "nccl"}, "runtime: found 'nccl'"),
        ({"protocols__LL128": None}, "protocols: LL128 is missing"),
        ({"protocols__LL__op_us": None}, "op_us"),
        ({"protocols__LL__tb_gbps": -3}, "tb_gbps: found -3"),
        ({"protocols__LL__tb_gbps": 0}, "tb_gbps: found 0"),
        ({"protocols__LL__tb_gbps": {"value": -3, "source": "x"}}, "found -3"),
        ({"protocols__LL__tb_gbps": 3.2e9}, "GB/s"),
        ({"protocols__LL__launch_us": 1e9}, "microseconds"),
        ({"protocols__LL__launch_us": "5 us"}, "launch_us"),
        ({"protocols__LL__wire": 0.5}, "wire"),
        ({"protocols__LL__op_ms": 1}, "op_ms"),
        ({"protocols__LL__op_us": {"value": 1, "measured": "yes"}}, "measured"),
        ({"protocols__LL__op_us": {"source": "x"}}, "value"),
        ({"shares__xgmi": 1.5}, "xgmi: found 1.5"),
        ({"shares__token_ring": 0.5}, "token_ring"),
        ({"nic_message_us": -1}, "nic_message_us: found -1"),
        ({"launch_per_gpu": 4}, "launch_per_gpu"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(changes, what):
    with pytest.raises(InputError) as error:
        profile_from_json(written(**changes), "mine.json")
    text = str(error.value)
    assert text.startswith("mine.json: ")
    assert what in text
    assert "\n" not in text


def test_a_file_that_is_no_json_is_refused(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        load_profile(str(path))


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(InputError, match="did you mean rccl-mi300x"):
        load_profile("rccl-mi300")


def test_values_have_the_origin_that_their_file_says():
    form = written(protocols__LL__op_us={"value": 1.25, "source": "a bench", "measured": True}, nic_message_us=0.5)
    profile = profile_from_json(json.loads(json.dumps(form)), "mine.json")
    figure = profile.figures["protocols/LL/op_us"]
    assert (figure.value, figure.source, figure.measured) == (1.25, "a bench", True)
    assert profile.protocols["LL"].op_us == 1.25
    figure = profile.figures["nic_message_us"]
    assert (figure.value, figure.source, figure.measured) == (0.5, profile.source, False)


# Which profile a machine gets


@pytest.mark.parametrize(
    ("machine", "runtime", "name"),
    [("mi300x", "rccl", "rccl-mi300x"), ("ndv4", "executor", "executor-a100"), ("ndv2", "legacy", "legacy-v100"),
     ("ndv5", "mscclpp", "mscclpp-h100")],
)  # fmt: skip
def test_the_default_is_that_of_the_runtime_on_the_gpus(machine, runtime, name):
    selection = select_profile("auto", runtime, load_topology(machine, 1))
    assert (selection.profile.name, selection.note) == (name, "")


def test_an_unknown_gpu_is_neutral_and_told_so():
    selection = select_profile("auto", "rccl", load_topology("ring:8"))
    assert selection.profile.is_neutral
    assert "not known" in selection.note


def test_a_profile_of_another_runtime_is_refused():
    with pytest.raises(InputError, match="is of rccl, but the runtime is executor"):
        select_profile("rccl-mi300x", "executor", load_topology("mi300x"))


def test_a_profile_is_measured_if_all_its_costs_are():
    """What its protocols hold is of the runtime, and no cost."""
    profile = load_profile("executor-a100")
    costs = {place for place in profile.figures if place.rpartition("/")[2] in COST_FIELDS}
    assert costs
    assert costs < set(profile.figures)
    for measured, evidence in ((set(), "not measured"), (set(list(costs)[1:]), "partly measured"), (costs, "measured")):
        figures = {place: replace(figure, measured=place in measured) for place, figure in profile.figures.items()}
        told = replace(profile, figures=figures)
        assert (told.evidence, told.is_measured) == (evidence, measured == costs)
