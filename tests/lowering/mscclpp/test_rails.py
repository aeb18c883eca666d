"""Switches inside nodes and rails between them: what the threadblocks do, the verifier, real data, times by hand, what is refused."""

import copy
import json
from dataclasses import replace

import pytest

from taccl_py.collective import ROOTED, Collective, Kind
from taccl_py.errors import InputError, LoweringError
from taccl_py.execute.one_sided import read_one_sided
from taccl_py.execute.one_sided_local import run_one_sided
from taccl_py.execute.plan import DataType, Operator
from taccl_py.execute.runs import Call, Conditions
from taccl_py.lowering.buffers import CallPlacement
from taccl_py.lowering.mscclpp import NodeRails, PlanOptions, lower_plan
from taccl_py.lowering.plan_reader import parse_plan
from taccl_py.runtimes import EXECUTOR
from taccl_py.schedule.ir import Schedule
from taccl_py.simulate.plan_replay import replay_plan
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.mscclpp import verify_plan
from tests.lowering.cases import MB
from tests.lowering.mscclpp.test_lower import names, ops
from tests.verify.mscclpp.plans import NOP

KINDS = ("allreduce", "allgather", "broadcast")


def asked(topology, kind, root=0):
    """A schedule without messages: plans by switch ask only for machine, collective and size."""
    collective = Collective(Kind(kind), topology.num_ranks, 1, root)
    return Schedule(topology, collective, MB, (), ((),) * topology.num_ranks)


def boxes(num_nodes, num_local):
    """Nodes of ND H100 v5 of which only some ranks take part."""
    ranks = [8 * node + local for node in range(num_nodes) for local in range(num_local)]
    return load_topology("ndv5", num_nodes).subset(ranks)


def text_of(schedule, **options):
    return lower_plan(schedule, PlanOptions(switch=True, **options)).text


def verified(text, schedule):
    collective = schedule.collective
    root = collective.root if collective.kind in ROOTED else None
    return verify_plan(text, "plan.json", kind=collective.kind, root=root).violations


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rails", list(NodeRails))
@pytest.mark.parametrize("placement", [CallPlacement.IN_PLACE, CallPlacement.OUT_OF_PLACE])
@pytest.mark.parametrize(("num_nodes", "num_local"), [(2, 2), (3, 2), (4, 3)])
def test_plans_are_right_in_the_eyes_of_the_verifier_and_on_real_data(kind, rails, placement, num_nodes, num_local):
    root = num_local + 1 if kind == "broadcast" else 0
    schedule = asked(boxes(num_nodes, num_local), kind, root)
    for instances, pieces, owners in ((1, 1, None), (2, 3, None), (1, 2, 1)):
        options = PlanOptions(placement, instances, switch=True, owners=owners, pieces=pieces, rails=rails)
        made = lower_plan(schedule, options)
        assert verified(made.text, schedule) == ()
        assert parse_plan(made.text, "plan.json") == made.plan
        plan = read_one_sided(made.text, "plan.json")
        assert plan.root == root
        for seed in range(2):
            call = Call(1 << 13, DataType.FLOAT32, Operator.SUM, in_place=placement is CallPlacement.IN_PLACE)
            assert run_one_sided(plan, call, Conditions(EXECUTOR, seed=seed, shuffled=True)).num_wrong == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rails", list(NodeRails))
@pytest.mark.parametrize("placement", [CallPlacement.IN_PLACE, CallPlacement.OUT_OF_PLACE])
@pytest.mark.parametrize("owners", [None, 1])
def test_every_operation_but_the_last_meetings_is_needed(kind, rails, placement, owners):
    """Whatever is left out, the verifier finds errors: to a wait, a signal, a meeting, a flush or a sum that is missing.

    A meeting may go where another one follows before anything depends on it, and where the same thread goes on.
    """
    schedule = asked(boxes(3, 2), kind)
    value = json.loads(text_of(schedule, placement=placement, rails=rails, owners=owners))
    meetings = []
    for gpu, threadblock in ((0, 0), (1, -1), (5, -1)):
        for number, operation in enumerate(ops(value, gpu, threadblock)[:-1]):
            broken = copy.deepcopy(value)
            del ops(broken, gpu, threadblock)[number]
            missed = verified(json.dumps(broken), schedule) != ()
            assert missed or operation == NOP, (gpu, threadblock, number, operation)
            meetings += [missed] * (operation == NOP)
    assert sum(meetings) * 2 >= len(meetings)


def test_an_allreduce_of_two_nodes_exchanges_the_sums_of_nodes():
    value = json.loads(text_of(asked(boxes(2, 2), "allreduce")))
    assert names(value, 0, 0) == [
        "rlxsignal", "rlxwait", "rlxwait", "nop", "glres", "nop", "sem_release", "pws", "flush", "nop",
    ]  # fmt: skip
    assert names(value, 0, 1) == [
        "rlxsignal", "wait", "sem_acquire", "nop", "re", "nop", "gstore", "nop", "signal", "wait", "nop",
    ]  # fmt: skip
    groups = [(one["buffer_type"], one["rank_groups"][0]["ranks"]) for one in value["gpus"][2]["channels"][2:]]
    assert groups == [("i", [2, 3]), ("i", [2, 3]), ("s", [2, 3])]
    stored = [ops(value, rank, 0)[4]["dst_buff"][0]["index"] for rank in range(4)]
    assert stored == [0, 1, 0, 1]  # neighbours store at each other's, at different places


@pytest.mark.parametrize("rails", list(NodeRails))
def test_all_nodes_add_up_in_one_order_so_that_they_get_the_same_bits(rails):
    """Scratch of rank r: two areas for sums of its own node, then what comes from the other nodes, the first one first."""
    value = json.loads(text_of(asked(boxes(3, 2), "allreduce"), rails=rails))
    parts = 3 if rails is NodeRails.RELAYED else 1
    for node, rank in enumerate((0, 2, 4)):
        (total,) = [one for one in ops(value, rank, 1) if one["name"] == "re"]
        read = [one["index"] for one in total["src_buff"]]
        own = node if parts > 1 else 0
        assert read[node] == own
        assert [one for one in read if one != own] == [2 * parts, 2 * parts + 1]


def test_sums_are_stored_at_a_neighbour_and_not_at_all():
    value = json.loads(text_of(asked(boxes(2, 3), "allreduce")))
    pairs = [one["rank_groups"][0]["ranks"] for one in value["gpus"][1]["channels"] if one.get("buffer_type") == "s"]
    assert pairs == [[0, 1], [1, 2]]  # its own, which is that of rank 0 too, and that of rank 2


@pytest.mark.parametrize(
    ("rails", "hops"),
    [(NodeRails.DIRECT, {(0, 2), (0, 4), (1, 3), (1, 5)}), (NodeRails.RELAYED, {(0, 2), (1, 3), (2, 4), (3, 5)})],
)
def test_a_broadcast_goes_to_the_other_nodes_at_once_or_from_node_to_node(rails, hops):
    value = json.loads(text_of(asked(boxes(3, 2), "broadcast"), rails=rails))
    found = {(gpu["id"], one["rank"]) for gpu in value["gpus"] for one in gpu["remote_buffers"]}
    assert found == hops


def test_a_broadcast_takes_what_ports_and_nics_take():
    """8 MB on two nodes: 450 GB/s and 0.3 us at ports, 50 GB/s and 2.6 us at NICs; 8 stores of a MB enter each port at the end."""
    schedule = asked(load_topology("ndv5", 2), "broadcast")
    plan = lower_plan(schedule, PlanOptions(switch=True)).plan
    store, send, hand = 8 / 0.45 + 0.3, 1 / 0.05 + 2.6, 8 * (1 / 0.45 + 0.3)
    found = replay_plan(plan, Kind.BROADCAST, schedule.topology, MB)
    assert found.makespan_us == pytest.approx(store + send + hand)


def test_a_small_broadcast_takes_one_rail():
    """1 KB on two nodes, root 9: two stores and a message. The other ranks only greet, and wait."""
    schedule = asked(load_topology("ndv5", 2), "broadcast", 9)
    plan = lower_plan(schedule, PlanOptions(switch=True, owners=1)).plan
    found = replay_plan(plan, Kind.BROADCAST, schedule.topology, MB / 1000)
    assert found.makespan_us == pytest.approx(2 * (0.001 / 0.45 + 0.3) + 0.001 / 0.05 + 2.6)
    assert {(one.src, one.dst) for one in found.transfers} == {(9, 1)}
    assert [operation.name for operation in plan.gpus[2].blocks[0].operations] == ["rlxsignal", "wait", "nop"]


def test_sums_at_pairs_leave_the_ports_room():
    """Into a port: 8 sums of 1 MB at two of eight ranks and to who asks, 3 MB; then 8 MB of results. All at ports is 17 MB."""
    schedule = asked(load_topology("ndv5", 2), "allreduce")
    plan = lower_plan(schedule, PlanOptions(switch=True)).plan
    sums, exchange, results = 9 / 0.45 + 8 * 0.3 + 0.3, 1 / 0.05 + 2.6, 8 * (1 / 0.45 + 0.3)
    found = replay_plan(plan, Kind.ALLREDUCE, schedule.topology, MB)
    # The first sums are there while the last ones are still added up, so exchange and results begin earlier.
    assert results + exchange < found.makespan_us < sums + exchange + results


def cut_off(topology):
    """No links from rank 0 to the rank with its number on the other node."""
    links = tuple(one for one in topology.links if {one.src, one.dst} != {0, 2})
    return replace(topology, links=links)


@pytest.mark.parametrize(
    ("topology", "says"),
    [
        (lambda: load_topology("ndv4", 2), "has no switch that multicasts and reduces among all ranks of every node"),
        (lambda: load_topology("ndv5", 2).subset(range(9)), "among all ranks of every node"),
        (lambda: load_topology("ndv5", 2).subset([0, 1, 2, 8, 9]), "differ in size, or ranks of one local number"),
        (lambda: cut_off(boxes(2, 2)), "differ in size, or ranks of one local number have no links to each other"),
    ],
)
def test_nodes_without_switches_or_rails_are_refused(topology, says):
    with pytest.raises(InputError, match=says):
        lower_plan(asked(topology(), "allreduce"), PlanOptions(switch=True))


@pytest.mark.parametrize(
    ("options", "limit"), [({"pieces": 20}, "max_operations"), ({"instances": 17}, "semaphores")]
)  # fmt: skip
def test_limits_are_kept(options, limit):
    with pytest.raises(LoweringError) as caught:
        text_of(asked(boxes(2, 2), "allreduce"), **options)
    assert caught.value.limit == limit
