"""What the model of eight MI300X says of MSCCL XML files that were measured there: errors, a fit, the choice among files, FIFO safety."""

import math
import statistics
from collections import defaultdict
from dataclasses import replace

import pytest

from taccl_py.lowering.msccl_xml import emit_xml
from taccl_py.measure.runtime_fit import fit_runtime, program_observations, program_parameters, residuals
from taccl_py.profiles.catalog import load_profile
from taccl_py.runtimes import RCCL
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.msccl import verify_program
from tests.reality.mi300x import ONE_OF_EACH, all_observations, fitted_to, observations, program_of, programs, times


def test_every_file_has_its_rows():
    assert len(programs()) == 24
    assert sum(map(len, times().values())) == 141


def test_the_shipped_profile_predicts_the_given_files():
    total, by_protocol, _ = residuals(load_profile("rccl-mi300x"), all_observations())
    assert total.median <= 1.06
    assert total.p90 <= 1.20
    assert set(by_protocol) == {"LL", "LL128", "Simple"}
    for residual in by_protocol.values():
        assert residual.median <= 1.12


def test_one_file_of_each_protocol_tells_the_others():
    fit = fitted_to(ONE_OF_EACH)
    total, _, _ = residuals(fit.profile, all_observations(without=ONE_OF_EACH))
    assert total.median <= 1.08
    assert total.p90 <= 1.25


def test_the_model_chooses_nearly_the_best_of_the_given_files():
    profile = load_profile("rccl-mi300x")
    contests = defaultdict(list)
    for name, ones in observations().items():
        for one in ones:
            contests[name.rsplit("_", 3)[0], one.size_bytes].append((one.predicted(profile), one.time_us))
    assert len(contests) == 18
    losses = [min(files)[1] / min(time_us for _, time_us in files) for files in contests.values()]
    assert statistics.median(losses) <= 1.03
    assert max(losses) <= 1.75


@pytest.mark.parametrize(("name", "safe_mib"), [("ar_allpair_simple_x_1", 32), ("ar_allpair_simple_x_4", 128)])
def test_simple_allreduce_is_safe_up_to_where_its_log_ends(name, safe_mib):
    program = program_of(name)
    facts = verify_program(emit_xml(program, RCCL), RCCL, kind=program.kind).facts
    assert facts.safe_max_bytes == safe_mib << 20
    assert max(size for size, _ in times()[name]) <= safe_mib << 20
    limited = replace(program, max_bytes=safe_mib << 20)
    assert not verify_program(emit_xml(limited, RCCL), RCCL, kind=program.kind).violations
    beyond = replace(program, max_bytes=(safe_mib << 20) + 1)
    assert verify_program(emit_xml(beyond, RCCL), RCCL, kind=program.kind).violations


def test_a_fit_finds_the_profile_that_made_the_times():
    start, topology = load_profile("rccl-mi300x"), load_topology("mi300x")
    names = ("ag_allpair_ll_x_2", "ag_ring_ll_4_1", "ar_allpair_ll_x_1", "ar_allpair_ll_x_4")
    sizes = [4096 << shift for shift in range(0, 15, 2)]
    costs = start.protocols["LL"]
    truth = replace(
        start,
        protocols={
            **start.protocols,
            "LL": replace(costs, launch_us=9.0, op_us=0.6, hop_near_us=2.0, tb_gbps=5.0, reduce_us=2.0),
        },
    )
    rows = [(size, 1.0) for size in sizes]
    asked = [
        one for name in names for one in program_observations(program_of(name), topology, start, rows, name)
    ]  # fmt: skip
    made = [replace(one, time_us=one.predicted(truth)) for one in asked]
    fit = fit_runtime(start, program_parameters(start, topology, [program_of(name) for name in names]), made)
    assert fit.residual.p90 <= 1.005
    found = fit.profile.protocols["LL"]
    for name in ("launch_us", "op_us", "hop_near_us", "tb_gbps", "reduce_us"):
        assert f"protocols/LL/{name}" in fit.fitted
        assert getattr(found, name) == pytest.approx(getattr(truth.protocols["LL"], name), rel=0.05), name
    assert fit.profile.protocols["Simple"] == start.protocols["Simple"]


def test_what_times_leave_open_keeps_its_value_and_is_named():
    start, topology = load_profile("rccl-mi300x"), load_topology("mi300x")
    name = "ag_allpair_LL128_x_2"
    fit = fit_runtime(start, program_parameters(start, topology, [program_of(name)]), observations()[name])
    assert {"protocols/LL128/launch_us", "protocols/LL128/tb_gbps"} <= set(fit.fitted)
    assert "protocols/LL128/op_us" in fit.unidentified
    assert fit.profile.protocols["LL128"].op_us == start.protocols["LL128"].op_us
    assert not any("reduce" in place for place in (*fit.fitted, *fit.unidentified))
    assert math.isclose(fit.residual.bias, 1, rel_tol=0.05)
