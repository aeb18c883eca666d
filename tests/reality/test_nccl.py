"""Times of NCCL's algorithms under runtime profiles: against measured logs, and by their rules."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from taccl_py.baselines.nccl_fit import NcclObservation, fit_scales, log_observations, with_figures
from taccl_py.baselines.nccl_time import DIRECT, NcclTimes, nccl_machine, runs_of
from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.lowering.program import Protocol
from taccl_py.measure.nccl_tests import Log, LogRow
from taccl_py.profiles.catalog import load_profile, neutral_profile
from taccl_py.topology.catalog import load_topology
from tests.reality.nccl import (
    GPUS,
    LARGE_BYTES,
    PEAKS,
    Peak,
    error,
    errors_after_five,
    errors_left_out,
    fitted_without,
    machine,
    median_and_p90,
    neutral_error,
    peak_gbps,
    read_logs,
    tuner_error,
    verified,
)

NAMED = [log for log in read_logs() if log.named]


# --- Measured logs ----------------------------------------------------------------------------------------------------


def test_shipped_profiles_are_within_a_tenth_of_the_logs() -> None:
    errors = [
        error(each, load_profile(f"executor-{each.machine.topology.gpu}"))
        for log in NAMED for each in log.observations
    ]  # fmt: skip
    median, p90 = median_and_p90(errors)
    assert median <= 1.10
    assert p90 <= 1.45


def test_shipped_values_are_those_of_the_fit() -> None:
    values = fitted_without("")
    for gpu in GPUS:
        shipped = load_profile(f"executor-{gpu}")
        for name, costs in shipped.protocols.items():
            assert costs.launch_us == pytest.approx(values["launch"], rel=0.01)
            assert costs.op_us + costs.hop_near_us == pytest.approx(values[f"near/{name}"], rel=0.01)
            assert costs.op_us + costs.hop_far_us == pytest.approx(values[f"far/{name}"], rel=0.01)
        assert shipped.shares["nvlink"].value == pytest.approx(values[f"share/nvlink/{gpu}"], rel=0.01)
        assert shipped.shares["nic"].value == pytest.approx(values["share/nic"], rel=0.01)


@pytest.mark.slow
def test_a_log_left_out_is_predicted() -> None:
    errors = [one for log in NAMED for _, one in errors_left_out(log)]
    median, p90 = median_and_p90(errors)
    assert median <= 1.25
    assert p90 <= 2.0
    expected = [tuner_error(each) for log in NAMED for each in log.observations]
    links_alone = [neutral_error(each) for log in NAMED for each in log.observations]
    assert median < median_and_p90([one for one in expected if one is not None])[0]
    assert median < median_and_p90(links_alone)[0]


@pytest.mark.slow
def test_five_rows_of_a_log_scale_the_profile_that_was_fitted_without_it() -> None:
    errors = [each for log in NAMED for each in errors_after_five(log)]
    median, p90 = median_and_p90([one for _, one in errors])
    assert median <= 1.10
    assert p90 <= 1.40
    assert median_and_p90([one for size, one in errors if size > LARGE_BYTES])[0] <= 1.06


@pytest.mark.slow
def test_above_16_mib_a_machines_own_fit_is_closer() -> None:
    errors = [one for log in NAMED for one in verified(log)["own_large"]]
    assert median_and_p90(errors)[0] <= 1.06


@pytest.mark.parametrize("peak", PEAKS, ids=lambda peak: peak.log)
def test_peak_bus_bandwidths(peak: Peak) -> None:
    shipped, left_out = peak_gbps(peak)
    assert shipped == pytest.approx(peak.gbps, abs=peak.within)
    assert left_out == pytest.approx(peak.gbps, rel=0.1)


# --- Rules ------------------------------------------------------------------------------------------------------------


def test_every_algorithm_of_a_machine_has_a_time() -> None:
    hopper, profile = load_topology("ndv5"), load_profile("executor-h100")
    times = NcclTimes(nccl_machine(hopper), profile)
    assert [each.algorithm for each in times.at(Kind.ALLREDUCE, 1 << 20)] == ["Ring", "Tree", "NVLS"]
    assert [each.algorithm for each in times.at(Kind.ALLTOALL, 1 << 20)] == [DIRECT]
    two = NcclTimes(nccl_machine(load_topology("ndv5-x2")), profile)
    assert [each.algorithm for each in two.at(Kind.ALLREDUCE, 1 << 20)] == ["Ring", "Tree", "NVLSTree"]
    for kind in Kind:
        assert math.isfinite(two.best(kind, 1 << 20).time_us)


def test_protocols_rise_with_the_size_and_times_too() -> None:
    times = NcclTimes(nccl_machine(load_topology("ndv4")), load_profile("executor-a100"))
    found = [times.best(Kind.ALLGATHER, 1 << bits) for bits in range(10, 33)]
    assert found[0].protocol is Protocol.LL
    assert found[-1].protocol is Protocol.SIMPLE
    assert all(one.time_us <= other.time_us * 1.001 for one, other in pairwise(found))


def test_a_channel_must_have_bytes() -> None:
    where = nccl_machine(load_topology("ndv4"))
    rings = {
        size: {run.protocol: run for run in runs_of(where, Kind.ALLGATHER, size) if run.algorithm == "Ring"}
        for size in (1024, 65536, 1 << 26)
    }
    # Eight ranks, LL: one channel below 64 KiB, two from there, all of them for large sizes.
    moved = {size: 7 / 8 * size / run[Protocol.LL].block_bytes for size, run in rings.items()}
    assert moved == {1024: pytest.approx(1), 65536: pytest.approx(2), 1 << 26: pytest.approx(where.channels)}


def test_one_process_that_drives_all_gpus_launches_later() -> None:
    profile = load_profile("executor-a100")
    alone = NcclTimes(nccl_machine(load_topology("ndv4")), profile).best(Kind.ALLREDUCE, 1024)
    together = NcclTimes(nccl_machine(load_topology("ndv4"), gpus_per_process=8), profile).best(Kind.ALLREDUCE, 1024)
    assert together.time_us - alone.time_us == pytest.approx(7 * profile.launch_per_gpu_us)


def test_zero_bytes_of_twelve_gpus_in_one_process_take_57_us() -> None:
    # jgwohlbier, DGX-2: AllGather of 0 bytes with -g 12.
    where = nccl_machine(machine("v100", 12, 1, 150, 0, 0), gpus_per_process=12)
    assert NcclTimes(where, load_profile("executor-v100")).best(Kind.ALLGATHER, 1).time_us == pytest.approx(57, abs=6)


def test_fabrics() -> None:
    topology, profile = load_topology("ndv4-x2"), load_profile("executor-a100")
    plain = NcclTimes(nccl_machine(topology), profile)
    efa = NcclTimes(nccl_machine(topology, fabric="efa"), profile)
    for size in (1024, 1 << 30):
        assert efa.best(Kind.ALLREDUCE, size).time_us > plain.best(Kind.ALLREDUCE, size).time_us
    with pytest.raises(InputError, match="no fabric 'slingshot', only efa, tcpx, tcpxo"):
        NcclTimes(nccl_machine(topology, fabric="slingshot"), profile)


def test_neutral_profile_leaves_bytes_on_links() -> None:
    times = NcclTimes(nccl_machine(load_topology("ndv4")), neutral_profile())
    assert times.best(Kind.ALLGATHER, 8 * 300e3).time_us == pytest.approx(7.0)


def test_rccl_has_rings_and_trees_without_ll128() -> None:
    # RCCL 2.21.5 on 8 MI300X (rouge3877/ns3-msccl-data@76fd624): AllGather and AllReduce by its own choice.
    times = NcclTimes(nccl_machine(load_topology("mi300x")), load_profile("rccl-mi300x"))
    measured = {
        (Kind.ALLGATHER, 1 << 16): 19.2, (Kind.ALLGATHER, 1 << 20): 35.3, (Kind.ALLGATHER, 64 << 20): 236.0,
        (Kind.ALLGATHER, 512 << 20): 1570.0, (Kind.ALLREDUCE, 1 << 16): 28.1, (Kind.ALLREDUCE, 1 << 20): 53.4,
        (Kind.ALLREDUCE, 64 << 20): 428.0, (Kind.ALLREDUCE, 512 << 20): 3034.0,
    }  # fmt: skip
    found = {call: times.best(*call) for call in measured}
    assert all(each.protocol is not Protocol.LL128 for each in found.values())
    errors = [math.log(found[call].time_us / measured[call]) for call in measured]
    assert median_and_p90(errors)[0] <= 1.15


def test_a_fast_neighbour_limits_sendrecv() -> None:
    # Two of these GPUs a peer; A100 of NVLink 3 in both directions.
    times = NcclTimes(nccl_machine(load_topology("ndv4")), load_profile("executor-a100"))
    assert (1 << 30) / times.sendrecv_us(1 << 30) / 1000 == pytest.approx(231, abs=10)


# --- Four scales ------------------------------------------------------------------------------------------------------


def _made(scales: tuple[float, float, float, float], nodes: int) -> list[NcclObservation]:
    """What a machine shows on which latencies and rates are other ones by these factors."""
    base = load_profile("executor-a100")
    near, far, _, links = scales
    changed = {"shares/nvlink": base.shares["nvlink"].value * links, "shares/nic": base.shares["nic"].value * links}
    for name, costs in base.protocols.items():
        changed[f"protocols/{name}/launch_us"] = near * costs.launch_us
        changed[f"protocols/{name}/op_us"] = near * costs.op_us
        changed[f"protocols/{name}/hop_near_us"] = near * costs.hop_near_us
        changed[f"protocols/{name}/hop_far_us"] = far * (costs.op_us + costs.hop_far_us) - near * costs.op_us
    profile = with_figures(base, changed, "made up", measured=False)
    where = nccl_machine(load_topology(f"ndv4-x{nodes}" if nodes > 1 else "ndv4"))
    times = NcclTimes(where, profile)
    sizes = [1 << bits for bits in range(10, 34, 2)]
    return [NcclObservation(where, Kind.ALLREDUCE, size, times.best(Kind.ALLREDUCE, size).time_us) for size in sizes]


def test_scales_are_found_again() -> None:
    made = _made((1.4, 0.8, 1.0, 0.9), 2)
    base = load_profile("executor-a100")
    profile, residual, unidentified = fit_scales(made, base)
    assert residual <= 1.02
    assert "far hops" not in unidentified
    assert profile.protocols["LL"].launch_us == pytest.approx(1.4 * base.protocols["LL"].launch_us, rel=0.1)
    assert profile.shares["nic"].value == pytest.approx(0.9 * base.shares["nic"].value, rel=0.05)
    # A log of NCCL measures what only NCCL needs, not what an executor of XML files costs.
    assert profile.figures["fabric_us/efa"].measured
    assert not profile.figures["protocols/LL/launch_us"].measured
    assert "log of NCCL itself" in profile.figures["protocols/LL/launch_us"].source


def test_observations_of_a_log() -> None:
    where = nccl_machine(load_topology("ndv4"))
    log = Log(
        "run.log", Kind.ALLREDUCE, 8, 1, (LogRow(1024, 17.0, 18.0), LogRow(2048, None, 19.0), LogRow(0, 15.0, 15.0))
    )
    found = log_observations(log, where)
    assert [(each.size_bytes, each.time_us, each.machine.gpus_per_process) for each in found] == [
        (1024, 17.0, 8),
        (2048, 19.0, 8),
    ]
    with pytest.raises(InputError, match="is of 8 ranks, and ndv4-x2 has 16"):
        log_observations(log, nccl_machine(load_topology("ndv4-x2")))
    with pytest.raises(InputError, match="does not name its program"):
        log_observations(replace(log, kind=None), where)


def test_one_node_does_not_tell_far_hops() -> None:
    _, _, unidentified = fit_scales(_made((1.2, 1.0, 1.0, 0.95), 1), load_profile("executor-a100"))
    assert "far hops" in unidentified


def test_bad_observations() -> None:
    made = _made((1.0, 1.0, 1.0, 1.0), 1)
    with pytest.raises(InputError, match="no times of NCCL"):
        fit_scales([], load_profile("executor-a100"))
    with pytest.raises(InputError, match="nothing to scale"):
        fit_scales(made, neutral_profile())
    wrong = NcclObservation(made[0].machine, made[0].kind, made[0].size_bytes, -1.0)
    with pytest.raises(InputError, match=r"found -1\.0 us"):
        fit_scales([wrong], load_profile("executor-a100"))
