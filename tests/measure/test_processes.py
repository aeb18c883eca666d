"""Profiles of real processes under mpiexec and torchrun: of this computer, and of machines that they emulate together."""

import json

import pytest

from taccl_py.topology.files import read_topology
from taccl_py.topology.machines import formula_topology
from tests.execute.processes import errors
from tests.measure.launching import LAUNCHERS, NOT_IN_CI, QUICK_LAUNCHERS, interrupted, profiled, write_machine

every_launcher = pytest.mark.parametrize("launcher", LAUNCHERS)
quick_launcher = pytest.mark.parametrize("launcher", QUICK_LAUNCHERS)


@pytest.fixture
def small(tmp_path):
    """A switch with three ranks, in milliseconds, which any computer can keep apart."""
    return write_machine(tmp_path, formula_topology("switch:3,alpha_us=1000,beta_us_per_mb=250"))


@pytest.mark.parametrize("launcher", LAUNCHERS[:1])
def test_processes_that_share_an_emulated_machine_find_its_costs_and_ports(tmp_path, small, launcher):
    ended = profiled(launcher, 3, "--emulate", small, "-o", tmp_path / "mine.json", "--json")
    assert ended.code == 0, ended.err
    assert "experiments, about" in ended.err
    machine = read_topology(tmp_path / "mine.json")
    # What a busy computer does to a short profile is allowed for; tests of ground truth are longer and stricter.
    for link in machine.links:
        assert (link.alpha_us, link.beta_us_per_mb) == (pytest.approx(1000, rel=0.15), pytest.approx(250, rel=0.15))
    shared = [
        {(link.src, link.dst) for link in machine.links if index in link.ports} for index in range(len(machine.ports))
    ]
    outs = [{(rank, other) for other in range(3) if other != rank} for rank in range(3)]
    assert sorted(map(sorted, shared)) == sorted(
        map(sorted, [*outs, *({(dst, src) for src, dst in one} for one in outs)])
    )


@pytest.mark.parametrize(
    "launcher", [LAUNCHERS[0], pytest.param("torch", marks=[*LAUNCHERS[1].marks, pytest.mark.slow, NOT_IN_CI])]
)
def test_ctrl_c_leaves_a_topology_and_a_record_to_go_on_from(tmp_path, launcher):
    pair = write_machine(tmp_path, formula_topology("switch:2,alpha_us=1000,beta_us_per_mb=250"))
    words = ("--emulate", pair, "-o", tmp_path / "mine.json", "--repeats", 4)
    out, err = interrupted(launcher, 2, tmp_path / "r.jsonl", *words)
    assert "interrupted after" in out
    assert f"wrote {tmp_path / 'mine.json'}, of which not all was measured" in err
    machine = read_topology(tmp_path / "mine.json")
    assert (machine.num_ranks, len(machine.links)) == (2, 2)
    assert "interrupted" in machine.source
    before = (tmp_path / "r.jsonl").read_text(encoding="utf-8")
    ended = profiled(launcher, 2, *words, "--record", tmp_path / "r.jsonl")
    assert ended.code == 0, ended.err
    assert "interrupted" not in read_topology(tmp_path / "mine.json").source
    assert (tmp_path / "r.jsonl").read_text(encoding="utf-8").startswith(before)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS[:1])
def test_processes_are_profiled_into_a_machine_with_all_pairs(tmp_path, launcher):
    """Times are this machine's, so only what holds for every machine is asserted; through gloo `scripts/predict` profiles it."""
    words = ("--repeats", 2, "--record", tmp_path / "r.jsonl", "--json")
    ended = profiled(launcher, 2, *words, "-o", tmp_path / "mine.json")
    assert ended.code == 0, ended.err
    record = json.loads(ended.out)
    assert (record["num_ranks"], sum(one["links"] for one in record["classes"])) == (2, 2)
    machine = read_topology(tmp_path / "mine.json")
    assert set(machine.links_between) == {(0, 1), (1, 0)}
    for link in machine.links:
        # Between 1 TB/s and 10 MB/s: whatever this machine is, it is neither.
        assert 0.001 < link.beta_us_per_mb < 1e5
    # All results are in the record, so the same profile comes out without measuring.
    again = profiled(launcher, 2, *words)
    assert json.loads(again.out) == record


@every_launcher
def test_bad_input_is_told_once(tmp_path, launcher):
    ended = profiled(launcher, 2, "--emulate", tmp_path / "nothing.json")
    assert ended.code != 0
    (sentence,) = errors(ended)
    assert "no such file" in sentence


@quick_launcher
def test_an_emulated_machine_of_another_size_is_refused(small, launcher):
    ended = profiled(launcher, 2, "--emulate", small)
    assert ended.code != 0
    (sentence,) = errors(ended)
    assert "has 3 ranks, and processes have been started for 2" in sentence


@every_launcher
def test_one_process_has_nobody_to_send_to(launcher):
    ended = profiled(launcher, 1)
    assert ended.code != 0
    assert "start several" in errors(ended)[0]
