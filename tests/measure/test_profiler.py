"""Emulated machines are profiled blind: alpha within 10 %, beta within 3 %, every port that is felt found and none invented."""

import threading

import pytest

from taccl_py.errors import InputError
from taccl_py.measure import profiler
from taccl_py.measure.emulate import EmulatedBench
from taccl_py.measure.experiment import Counted, Experiment, MeasuredFlow
from taccl_py.measure.profiler import most_experiments, profile
from taccl_py.measure.record import Record
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import Degradation, degraded, parse_slow_link
from taccl_py.topology.difference import differences
from taccl_py.topology.files import require_connected
from tests.measure.machines import MACHINES, racks, small_nodes, wide_nics


def felt_ports(machine):
    """Ports by the links that share them, without those of one link, and those that others imply."""
    sharers = {}
    for link in machine.links:
        for port in link.ports:
            sharers.setdefault(port, set()).add((link.src, link.dst))
    found = {}
    for port, links in sharers.items():
        beta = machine.ports[port].beta_us_per_mb
        implied = any(
            links < other or (links == other and index < port)
            for index, other in sharers.items()
            if index != port and links <= other and machine.ports[index].beta_us_per_mb >= beta
        )
        if len(links) > 1 and not implied:
            found[frozenset(links)] = machine.ports[port]
    return found


@pytest.mark.parametrize(("noise", "seed"), [(0.0, 0), (0.005, 3), (0.01, 4), (0.02, 5)])
@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_that_is_profiled_blind_is_the_machine(name, noise, seed):
    truth = MACHINES[name]()
    found = profile(Counted(EmulatedBench(truth, noise, seed)))
    machine = found.topology
    assert machine.node_of == truth.node_of
    assert set(machine.links_between) == set(truth.links_between)
    for mine, true in zip(machine.links, truth.links, strict=True):
        assert mine.alpha_us == pytest.approx(true.alpha_us, rel=0.1)
        assert mine.beta_us_per_mb == pytest.approx(true.beta_us_per_mb, rel=0.03)
    ports, expected = felt_ports(machine), felt_ports(truth)
    assert set(ports) == set(expected)
    for links, port in expected.items():
        assert ports[links].beta_us_per_mb == pytest.approx(port.beta_us_per_mb, rel=0.03 if noise <= 0.01 else 0.05)
    assert found.experiments <= most_experiments(len(truth.links), truth.num_ranks, len(found.lines), len(found.ports))


@pytest.mark.parametrize(("times_a_link", "senders"), [(1.75, {(0, 1), (2, 3)}), (2.0, {(0,), (1,), (2,), (3,)})])
def test_a_port_of_two_ranks_is_told_from_two_ports_where_one_link_of_each_fills_it(times_a_link, senders):
    """As docs/machines.md says; a port that both links together do not fill is one of each rank, at its own rate."""
    found = profile(Counted(EmulatedBench(wide_nics(times_a_link)))).topology
    ports = felt_ports(found)
    out = {links: port for links, port in ports.items() if all(src < 4 <= dst for src, dst in links)}
    assert {tuple(sorted({src for src, _ in links})) for links in out} - {(0, 1, 2, 3)} == senders
    for port in out.values():
        assert port.beta_us_per_mb == pytest.approx(105.0 / times_a_link, rel=0.03)


def test_two_flows_through_one_port_take_turns():
    """NDv2-like: 8 messages of 1 MB over the NIC take 8 x (2.6 + 105); of two senders together 16 times that."""
    bench = EmulatedBench(MACHINES["ndv2_like"]())
    (alone,) = bench.run(Experiment((MeasuredFlow(0, 4),), 10**6, 8))
    assert alone == pytest.approx(8 * 107.6)
    assert max(bench.run(Experiment((MeasuredFlow(0, 4), MeasuredFlow(1, 5)), 10**6, 8))) == pytest.approx(16 * 107.6)
    assert bench.run(Experiment((MeasuredFlow(0, 4), MeasuredFlow(4, 0)), 10**6, 8)) == (
        pytest.approx(alone),
        pytest.approx(alone),
    )
    with pytest.raises(InputError, match="no link 0->3"):
        bench.run(Experiment((MeasuredFlow(0, 3),), 8))


class Stopped(Exception):
    pass


def test_an_interrupted_profile_goes_on_where_it_stopped(tmp_path):
    truth = MACHINES["dgx2_like"]()
    whole = profile(Counted(EmulatedBench(truth)))
    assert whole.complete
    record = Record(tmp_path / "r.jsonl", truth.name, truth.num_ranks)

    def keep(experiment, times):
        record.keep(experiment, times)
        if len(Record(tmp_path / "r.jsonl", truth.name, truth.num_ranks).known) == 150:
            raise Stopped

    with pytest.raises(Stopped):
        profile(Counted(EmulatedBench(truth), keep=keep))
    with (tmp_path / "r.jsonl").open("a") as file:
        file.write('{"size_bytes": 64, "mess')  # killed while writing
    again = Record(tmp_path / "r.jsonl", truth.name, truth.num_ranks)
    assert len(again.known) == 150
    counted = Counted(EmulatedBench(truth), known=again.known, keep=again.keep)
    assert profile(counted).topology == whole.topology
    assert 0 < counted.busy_us < whole.busy_us


@pytest.mark.parametrize("results", [3, 25, 60, 150, 400])
def test_a_profile_that_is_stopped_at_any_time_is_a_machine_with_all_links(results):
    """What was not measured counts as the slowest of its kind, and the machine says so."""
    truth = MACHINES["dgx2_like"]()
    stop = threading.Event()
    counted = Counted(EmulatedBench(truth), stop=stop, progress=lambda _, done: stop.set() if done == results else None)
    if results == 3:
        with pytest.raises(profiler.Stopped):
            profile(counted)
        return
    found = profile(counted)
    assert not found.complete
    assert bool(found.assumed) == (results < 100)
    assert f"interrupted: {len(found.assumed)} links" in found.topology.source
    assert set(found.topology.links_between) == set(truth.links_between)
    require_connected(found.topology)
    for mine, true in zip(found.topology.links, truth.links, strict=True):
        if MeasuredFlow(mine.src, mine.dst) not in found.assumed:
            assert mine.beta_us_per_mb == pytest.approx(true.beta_us_per_mb, rel=0.03)


def test_every_pair_can_be_measured_at_all_sizes():
    truth = MACHINES["ndv2_like"]()
    found = profile(Counted(EmulatedBench(truth)), all_pairs=True)
    assert len(found.lines) == len(truth.links)
    assert {(one.src, one.dst) for one in found.samples} == set(truth.links_between)
    assert set(felt_ports(found.topology)) == set(felt_ports(truth))


def test_runs_that_scatter_are_repeated_and_the_lower_ones_count():
    """Every other run takes twice as long, as where another program comes in between."""

    class Disturbed(EmulatedBench):
        turns = 0

        def run(self, experiment):
            self.turns += 1
            return tuple(time * (2 if self.turns % 2 else 1) for time in super().run(experiment))

    bench = Disturbed(MACHINES["ring"]())
    assert Counted(bench).last_us([MeasuredFlow(0, 1)], 10**6, 4) == pytest.approx(4 * 32)
    assert bench.turns == 12


def test_how_long_the_last_of_equal_flows_takes_is_not_lost_when_chance_says_which_it_is():
    """Two flows of one NIC end after 15 and 16 messages, now this one first and now that one."""

    class Shuffled(EmulatedBench):
        turns = 0

        def run(self, experiment):
            self.turns += 1
            return super().run(experiment)[:: 1 if self.turns % 3 else -1]

    bench = Shuffled(MACHINES["ndv2_like"]())
    flows = [MeasuredFlow(0, 4), MeasuredFlow(1, 5)]
    for messages in (8, 9, 10):
        found = sorted(Counted(bench).times_us(flows, 10**6, messages))
        assert found == [pytest.approx((2 * messages - 1) * 107.6), pytest.approx(2 * messages * 107.6)]


def test_a_record_of_another_machine_is_refused(tmp_path):
    Record(tmp_path / "r.jsonl", "mine", 8)
    with pytest.raises(InputError, match="is not a record of other with 8 ranks"):
        Record(tmp_path / "r.jsonl", "other", 8)
    (tmp_path / "r.jsonl").write_text((tmp_path / "r.jsonl").read_text() + '{"size_bytes": 1}\n')
    with pytest.raises(InputError, match=r"r.jsonl, line 2: ranks: is missing"):
        Record(tmp_path / "r.jsonl", "mine", 8)


def test_equal_nodes_are_probed_three_at_a_time_and_the_others_follow():
    truth = load_topology("ndv4", 6)
    found = profile(Counted(EmulatedBench(truth)))
    assert [one for one in differences(truth, found.topology, 0.03) if one.change != "new"] == []
    assert set(felt_ports(found.topology)) == set(felt_ports(truth))
    assert found.experiments * 10 < truth.num_ranks * (truth.num_ranks - 1) * 6


def test_a_node_that_is_slower_than_those_that_stand_for_it_is_noticed_and_measured():
    truth = degraded(small_nodes(5), Degradation((), (parse_slow_link("8-9:0.5"),)))
    found = profile(Counted(EmulatedBench(truth))).topology
    rates = {(link.src, link.dst): link.beta_us_per_mb for link in found.links}
    assert (rates[8, 9], rates[0, 1]) == (pytest.approx(16, rel=0.03), pytest.approx(8, rel=0.03))


def test_what_nodes_share_beyond_themselves_is_not_overlooked():
    """Four nodes of two, two nodes on each leaf, and a third of the rate between leaves."""
    truth = racks()
    assert set(felt_ports(profile(Counted(EmulatedBench(truth))).topology)) == set(felt_ports(truth))


NOISES = [(0.02, 0), (0.05, 1), (0.1, 2), (0.05, 20), (0.05, 21), (0.05, 22), (0.1, 21), (0.1, 22)]


@pytest.mark.parametrize(
    ("name", "nodes", "classes", "noise", "seed"),
    [
        *(
            (*machine, *noise)
            for machine in (("full:8", 1, 1), ("switch:8", 1, 1), ("torus:4x4", 1, 1))
            for noise in NOISES
        ),
        *(("ndv2", 2, 3, *noise) for noise in NOISES[2::3]),
    ],
)
def test_noise_makes_no_classes_and_no_ports(name, nodes, classes, noise, seed):
    """With seeds for which it did before classes were told by all links, and ports confirmed by the average of their flows."""
    machine = load_topology(name, nodes)
    found = profile(Counted(EmulatedBench(machine, noise, seed)))
    assert len(found.lines) == classes
    assert felt_ports(found.topology).keys() == felt_ports(machine).keys()


@pytest.mark.parametrize(
    ("name", "nodes", "seed"),
    [*((name, 1, seed) for name in ("full:8", "torus:4x4") for seed in (20, 21, 23)), ("ndv2", 2, 21)],
)
def test_even_much_noise_makes_no_ports_and_hides_none(name, nodes, seed):
    machine = load_topology(name, nodes)
    found = profile(Counted(EmulatedBench(machine, 0.2, seed)))
    assert felt_ports(found.topology).keys() == felt_ports(machine).keys()


def test_classes_that_differ_stay_apart():
    """One link in eight is 10 % slower, and noise is 1 %."""
    truth = degraded(load_topology("full:4"), Degradation(slow=(parse_slow_link("0-1:0.9"),)))
    found = profile(Counted(EmulatedBench(truth, 0.01, 1)))
    assert sorted(len(members) for _, members in found.lines) == [2, 10]
