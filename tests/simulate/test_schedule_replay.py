from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.errors import InputError
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.simulate.schedule_replay import decisions, replay_schedule
from taccl_py.topology.model import Link, Port
from tests.simulate.cases import (
    MB,
    Planner,
    both_ways,
    chain_broadcast,
    machine,
    recursive_doubling,
    relayed_scatter,
    ring_allgather,
    ring_allreduce,
    schedules,
)

SIZES = st.floats(1.0, 1e9)


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [(ring_allgather(4), 3), (ring_allgather(2), 1), (ring_allreduce(4), 6), (chain_broadcast(4, 1), 3)],
)
def test_a_ring_takes_its_steps_times_alpha_plus_beta(schedule, steps):
    assert replay_schedule(schedule, MB).makespan_us == pytest.approx(steps * (1.0 + 10.0))
    assert replay_schedule(schedule, 250_000).makespan_us == pytest.approx(steps * (1.0 + 2.5))


def test_a_pipelined_chain_takes_its_hops_and_one_more_step_for_each_further_chunk():
    timeline = replay_schedule(chain_broadcast(4, 5), 2 * MB)
    assert timeline.makespan_us == pytest.approx((3 + 5 - 1) * (1.0 + 20.0))


def test_recursive_doubling_takes_two_steps_of_the_whole_buffer():
    assert replay_schedule(recursive_doubling(), 1000).makespan_us == pytest.approx(2 * (1.0 + 10.0 * 0.004))


def test_messages_behind_one_port_are_staggered_by_the_port_and_not_by_their_links():
    links = [Link(0, 1, 1.0, 40.0, ports=(0,)), Link(0, 2, 1.0, 40.0, ports=(0,))]
    planner = Planner(machine(3, links, [Port("nic", 0.5, 10.0)]), Collective(Kind.BROADCAST, 3), MB)
    planner.send(0, 0)
    planner.send(1, 0)
    timeline = replay_schedule(planner.schedule(), 2 * MB)
    assert [(t.start_us, t.end_us) for t in timeline.transfers] == [(0.0, 81.0), (20.5, 101.5)]


def test_a_port_slower_than_its_link_decides_when_data_arrive():
    links = [Link(0, 1, 1.0, 10.0, 0.25, (0,)), Link(1, 2, 1.0, 10.0)]
    planner = Planner(machine(3, links, [Port("nic", 5.0, 20.0)]), Collective(Kind.BROADCAST, 3), MB)
    planner.send(0, 0)
    planner.send(1, 0)
    timeline = replay_schedule(planner.schedule(), MB / 2)
    assert [(t.start_us, t.end_us) for t in timeline.transfers] == [(0.0, 15.25), (15.25, 21.25)]


def test_chunks_sent_together_pay_alpha_once():
    timeline = replay_schedule(relayed_scatter(), 100.0)
    first, second = timeline.transfers
    assert (first.size_bytes, second.size_bytes) == (200.0, 100.0)
    assert first.end_us == pytest.approx(1.0 + 0.002)
    assert timeline.makespan_us == pytest.approx(1.0 + 0.002 + 1.0 + 0.001)


def test_the_order_on_a_link_is_kept_even_where_another_one_would_be_faster():
    """Rank 1 has its own chunk at once, but the schedule lets the chunk of rank 0 go first."""
    planner = Planner(both_ways((0, 1), (1, 2)), Collective(Kind.GATHER, 3, root=2), MB)
    planner.hop(0, 1, 0)
    planner.hop(1, 2, 0)
    planner.hop(1, 2, 1)
    timeline = replay_schedule(planner.schedule(), MB)
    assert [t.start_us for t in timeline.transfers] == [0.0, 11.0, 22.0]


def test_waits_that_the_schedule_makes_for_nothing_are_left_out():
    planner = Planner(both_ways((0, 1), (1, 2)), Collective(Kind.BROADCAST, 3), MB)
    planner.hop(0, 1, 0, not_before_us=5.0)
    planner.hop(1, 2, 0, not_before_us=70.0)
    schedule = planner.schedule()
    assert schedule.makespan_us == 81.0
    assert replay_schedule(schedule, MB).makespan_us == 22.0


def test_a_message_waits_for_what_had_arrived_by_its_start_and_for_nothing_that_came_later():
    """Rank 1 sends its own part first and the part of rank 2 after it; it waits for rank 2 only the second time."""
    topology = both_ways((0, 1), (1, 2))
    links = topology.links_between
    messages = (
        Message(links[1, 0][0], (0,), 0.0, 11.0, True),
        Message(links[2, 1][0], (0,), 0.0, 11.0),
        Message(links[1, 0][0], (0,), 30.0, 41.0, True),
    )
    schedule = Schedule(topology, Collective(Kind.REDUCE, 3), MB, messages, ((), (0,), ()))
    assert [turn.waits_for for turn in decisions(schedule)] == [(), (), (1,)]
    assert replay_schedule(schedule, MB).makespan_us == 22.0


def test_an_arrival_counts_when_only_rounding_puts_it_after_the_start():
    schedule = chain_broadcast(3, 1)
    first, second = schedule.messages
    early = replace(second, start_us=second.start_us * (1 - 1e-15), end_us=second.end_us * (1 - 1e-15))
    assert early.start_us < first.end_us
    assert replay_schedule(replace(schedule, messages=(first, early)), 2 * MB).makespan_us == 42.0


def test_a_message_with_a_sum_waits_for_all_its_parts():
    planner = Planner(both_ways((0, 1), (1, 2), (1, 3)), Collective(Kind.REDUCE, 4), MB)
    planner.hop(2, 1, 0, reduce=True)
    planner.hop(3, 1, 0, reduce=True, not_before_us=50.0)
    planner.hop(1, 0, 0, reduce=True)
    assert decisions(planner.schedule())[2].waits_for == (0, 1)


def test_what_is_added_waits_for_what_is_stored_there_before():
    """Rank 2 tells rank 1 the value before rank 0's part is added there, which would be lost the other way round."""
    topology = both_ways((0, 1), (1, 2))
    links = topology.links_between
    messages = (
        Message(links[2, 1][0], (0,), 0.0, 11.0),
        Message(links[0, 1][0], (0,), 11.0, 22.0, True),
    )
    schedule = Schedule(topology, Collective(Kind.REDUCE, 3), MB, messages, ((), (0,), ()))
    assert [turn.waits_for for turn in decisions(schedule)] == [(), (0,)]
    assert replay_schedule(schedule, MB).makespan_us == 22.0


def test_transfers_say_which_message_they_are():
    schedule = ring_allgather(4)
    timeline = replay_schedule(schedule, 500.0)
    assert sorted(t.message for t in timeline.transfers) == list(range(12))
    for transfer in timeline.transfers:
        message = schedule.messages[transfer.message]
        link = schedule.topology.links[message.link]
        assert (transfer.link, transfer.src, transfer.dst) == (message.link, link.src, link.dst)
        assert transfer.size_bytes == 500.0


def test_bandwidths_refer_to_the_replayed_size():
    timeline = replay_schedule(ring_allgather(4), 2 * MB)
    assert timeline.size_bytes == 8 * MB
    assert timeline.algbw_gbps == pytest.approx(8 * MB / 63.0 / 1000)
    assert timeline.busbw_gbps == pytest.approx(timeline.algbw_gbps * 3 / 4)


def test_a_schedule_without_messages_takes_no_time():
    timeline = replay_schedule(replace(ring_allgather(3), messages=()), MB)
    assert (timeline.makespan_us, timeline.transfers, timeline.algbw_gbps) == (0.0, (), None)


@pytest.mark.parametrize("size", [0.0, -1.0, float("inf"), float("nan")])
def test_an_impossible_size_is_refused(size):
    with pytest.raises(InputError, match="above 0"):
        replay_schedule(ring_allgather(3), size)


@settings(max_examples=200)
@given(schedules(delays=True))
def test_a_replay_at_the_schedules_own_size_is_never_slower_than_the_schedule(schedule):
    timeline = replay_schedule(schedule, schedule.chunk_bytes)
    assert timeline.makespan_us <= schedule.makespan_us * (1 + 1e-12)
    starts = {transfer.message: transfer.start_us for transfer in timeline.transfers}
    for index, message in enumerate(schedule.messages):
        assert starts[index] <= message.start_us * (1 + 1e-12)


@settings(max_examples=100)
@given(schedules())
def test_a_schedule_that_wastes_no_time_is_replayed_as_it_is(schedule):
    timeline = replay_schedule(schedule, schedule.chunk_bytes)
    assert timeline.makespan_us == pytest.approx(schedule.makespan_us, rel=1e-12)


@settings(max_examples=200)
@given(schedules(delays=True), SIZES)
def test_at_any_size_every_message_starts_when_the_last_thing_that_it_waits_for_is_done(schedule, chunk_bytes):
    """Told from the transfers alone, pair by pair."""
    topology = schedule.topology
    moves = {t.message: t for t in replay_schedule(schedule, chunk_bytes).transfers}
    for index, message in enumerate(schedule.messages):
        done = [0.0]
        link = topology.links[message.link]
        for before in range(index):
            other, move = schedule.messages[before], moves[before]
            shared = set(topology.resources_of[message.link]) & set(topology.resources_of[other.link])
            done += [move.start_us + topology.occupancy_us(r, move.size_bytes) for r in shared]
            arrived = other.end_us <= message.start_us + 1e-5 * (other.end_us - other.start_us)
            if arrived and topology.links[other.link].dst == link.src and set(other.chunks) & set(message.chunks):
                done.append(move.end_us)
        assert moves[index].start_us == pytest.approx(max(done), rel=1e-12)
        assert moves[index].end_us - moves[index].start_us == pytest.approx(
            topology.message_us(message.link, len(message.chunks) * chunk_bytes), rel=1e-9
        )


@settings(max_examples=100)
@given(schedules(delays=True), SIZES, SIZES)
def test_more_bytes_never_take_less_time(schedule, one, other):
    small, large = sorted((one, other))
    assert replay_schedule(schedule, small).makespan_us <= replay_schedule(schedule, large).makespan_us


@settings(max_examples=100)
@given(schedules(), SIZES, st.sampled_from([2.0, 8.0]))
def test_scaling_every_cost_scales_the_time(schedule, chunk_bytes, factor):
    topology = schedule.topology
    slower = replace(
        topology,
        links=tuple(
            replace(k, alpha_us=k.alpha_us * factor, beta_us_per_mb=k.beta_us_per_mb * factor, latency_us=k.latency_us * factor)
            for k in topology.links
        ),
        ports=tuple(
            replace(p, alpha_us=p.alpha_us * factor, beta_us_per_mb=p.beta_us_per_mb * factor) for p in topology.ports
        ),
    )  # fmt: skip
    expected = factor * replay_schedule(schedule, chunk_bytes).makespan_us
    assert replay_schedule(replace(schedule, topology=slower), chunk_bytes).makespan_us == pytest.approx(expected)
