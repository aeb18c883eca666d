"""Execution traces: read back by a decoder of the tests' own they say what the schedule does, and take as long on another clock."""

import json
from collections import Counter, defaultdict

import pytest

from taccl_py.baselines.library import baselines_of
from taccl_py.collective import Collective, Kind
from taccl_py.errors import InputError, LoweringError
from taccl_py.lowering.chakra import lower_chakra
from taccl_py.lowering.chakra.network import network_of
from taccl_py.lowering.chakra.wire import bytes_field, delimited, integer_field, packed_field, varint
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.schedule.timing import build_schedule
from taccl_py.topology.machines import formula_topology
from taccl_py.topology.model import Link
from taccl_py.verify.schedule import verify_schedule
from tests.instances import chain, machine
from tests.lowering.chakra.cases import SIX, direct, gather_on_ring
from tests.lowering.chakra.decode import decode, number
from tests.lowering.chakra.replay import RECEIVE, SEND, replay_ns

KINDS = {
    Kind.ALLGATHER: ("all-gather", 2), Kind.ALLREDUCE: ("all-reduce", 0), Kind.ALLTOALL: ("all-to-all", 6),
    Kind.REDUCESCATTER: ("reduce-scatter", 7), Kind.BROADCAST: ("all-reduce", 0),
}  # fmt: skip


def ranks_of(made, name="algorithm"):
    count = sum(file.startswith(f"{name}.") for file in made.files)
    return [decode(made.files[f"{name}.{rank}.et"])[1] for rank in range(count)]


def network_text(made):
    return made.files["network.yml"].decode()


def brought_by(schedule):
    """For every message those that bring its chunks to its sender before it starts, found pair by pair."""
    links = schedule.topology.links
    return [
        {
            j
            for j, earlier in enumerate(schedule.messages)
            if links[earlier.link].dst == links[message.link].src
            and set(earlier.chunks) & set(message.chunks)
            and earlier.end_us <= message.start_us * (1 + 1e-9)
        }
        for message in schedule.messages
    ]


@pytest.mark.parametrize("case", SIX)
def test_the_six_cases_take_as_long_as_on_astra_sim(case):
    make, time_us = SIX[case]
    schedule = make()
    assert verify_schedule(schedule) == ()
    made = lower_chakra(schedule, "algorithm")
    assert schedule.makespan_us == pytest.approx(time_us, rel=1e-12)
    assert replay_ns(ranks_of(made), network_text(made)) == round(1000 * time_us)
    assert made.network.shape == ("Ring" if case.startswith("ring") else "FullyConnected")


@pytest.mark.parametrize("case", SIX)
def test_the_graph_is_that_of_the_schedule(case):
    schedule = SIX[case][0]()
    links, ranks = schedule.topology.links, ranks_of(lower_chakra(schedule, "algorithm"))
    sends, receives = {}, {}
    for rank, nodes in enumerate(ranks):
        for node in nodes:
            assert node.type in (SEND, RECEIVE)
            assert not node.is_cpu_op
            (sends if node.type == SEND else receives)[node.comm_tag] = rank, node
    assert set(sends) == set(receives) == set(range(len(schedule.messages)))
    last = {}
    for i, (message, brought) in enumerate(zip(schedule.messages, brought_by(schedule), strict=True)):
        link = links[message.link]
        (src, send), (dst, receive) = sends[i], receives[i]
        assert (
            (src, dst) == (send.comm_src, send.comm_dst) == (receive.comm_src, receive.comm_dst) == (link.src, link.dst)
        )
        assert send.comm_size == receive.comm_size == round(len(message.chunks) * schedule.chunk_bytes)
        tag_of = {node.id: (node.type, node.comm_tag) for node in ranks[src]}
        assert {tag_of[key] for key in send.data_deps} == {(RECEIVE, j) for j in brought}
        assert [tag_of[key] for key in send.ctrl_deps] == ([(SEND, last[message.link])] if message.link in last else [])
        assert receive.ctrl_deps == []
        assert ("add" in receive.name) is message.reduce
        last[message.link] = i


@pytest.mark.parametrize(
    "kind", [Kind.ALLGATHER, Kind.ALLREDUCE, Kind.ALLTOALL, Kind.BROADCAST, Kind.REDUCE, Kind.SCATTER]
)
@pytest.mark.parametrize("name", ["hypercube:2", "full:5", "ring:4,alpha_us=3.3,beta_us_per_mb=7"])
def test_every_baseline_takes_as_long_on_the_other_clock(name, kind):
    """But for parts of nanoseconds, which are cut at each of the messages that wait for each other, and of bytes."""
    for baseline in baselines_of(formula_topology(name), kind, 0, 3e6):
        for variant in baseline.variants[:2]:
            schedule = variant.schedule
            made = lower_chakra(schedule, "algorithm")
            taken_ns, planned_ns = replay_ns(ranks_of(made), network_text(made)), 1000 * schedule.makespan_us
            in_a_row = schedule.num_steps + max(Counter(message.link for message in schedule.messages).values())
            assert taken_ns == pytest.approx(planned_ns, abs=1 + in_a_row)


def test_a_message_before_which_a_cell_is_filled_waits_for_that_at_the_receiver():
    """Rank 1 gets part 0 of rank 0's sum as a copy from rank 2, and may add rank 0's only then."""
    topology = machine(3, [Link(0, 1, 1.0, 10.0), Link(2, 1, 1.0, 10.0), Link(1, 0, 1.0, 10.0), Link(0, 2, 1.0, 10.0)])
    collective = Collective(Kind.REDUCE, 3, 1, 1)
    by_pair = topology.links_between
    drafts = [
        UntimedMessage(by_pair[2, 1][0], (0,), 0, 1), UntimedMessage(by_pair[0, 1][0], (0,), 2, 3, reduce=True),
    ]  # fmt: skip
    ranks = ranks_of(lower_chakra(build_schedule(topology, collective, 1e6, drafts), "algorithm"))
    first, second = ranks[1]
    assert (first.data_deps, second.data_deps) == ([], [first.id])
    assert [node.data_deps for node in ranks[0]] == [[]]


def test_a_link_that_is_free_before_its_message_has_arrived_is_not_held_back():
    """Two chunks of 1 MB over a link of 5 us latency that occupies nothing: 10 + 10 + 5 us, not 2 x 15."""
    topology = chain(2, alpha_us=0.0, latency_us=5.0)
    drafts = [UntimedMessage(0, (chunk,), chunk, chunk + 1) for chunk in (0, 1)]
    schedule = build_schedule(topology, Collective(Kind.BROADCAST, 2, 2), 1e6, drafts)
    made = lower_chakra(schedule, "algorithm")
    assert [node.ctrl_deps for node in ranks_of(made)[0]] == [[], []]
    assert replay_ns(ranks_of(made), network_text(made)) == 25_000
    assert schedule.makespan_us == pytest.approx(25)
    held = lower_chakra(build_schedule(chain(2, 5.0), Collective(Kind.BROADCAST, 2, 2), 1e6, drafts), "algorithm")
    assert [node.ctrl_deps for node in ranks_of(held)[0]] == [[], [0]]
    assert replay_ns(ranks_of(held), network_text(held)) == 30_000


@pytest.mark.parametrize("kind", KINDS)
def test_the_workload_calls_the_graph(kind):
    word, comm_type = KINDS[kind]
    if kind in (Kind.BROADCAST, Kind.REDUCESCATTER):
        topology = formula_topology("full:2")
        moves = [UntimedMessage(0, (0 if kind is Kind.BROADCAST else 1,), 0, 1, kind is Kind.REDUCESCATTER)]
        moves += [UntimedMessage(1, (0,), 0, 1, reduce=True)] * (kind is Kind.REDUCESCATTER)
        schedule = build_schedule(topology, Collective(kind, 2), 500.0, moves)
    else:
        schedule = direct(kind, 8000)
    made = lower_chakra(schedule, "mine")
    system = json.loads(made.files["system.json"])
    assert system == {
        "scheduling-policy": "FIFO", "preferred-dataset-splits": 1, f"{word}-implementation-custom": ["mine"],
    }  # fmt: skip
    for rank in range(schedule.topology.num_ranks):
        version, (node,) = decode(made.files[f"workload.{rank}.et"])
        assert (version, node.type, node.comm_type, node.name) == ("0.0.4", 7, comm_type, str(kind))
        assert node.comm_size == round(schedule.size_bytes)
    assert json.loads(made.files["memory.json"]) == {"memory-type": "NO_MEMORY_EXPANSION"}
    assert len(made.files) == 2 * schedule.topology.num_ranks + 3


@pytest.mark.parametrize("beta", [20.0, 3.3, 0.7, 40.0, 1e-3, 1234.5])
def test_no_byte_takes_less_than_it_should(beta):
    """ASTRA-sim drops parts of nanoseconds, so a rate that is a hair too fast would lose a whole one."""
    network = network_of(formula_topology(f"full:4,beta_us_per_mb={beta}"))
    assert int(1_000_000 / (network.bandwidth * 2**30 / 1e9)) == round(1000 * beta)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("ring:3", "Ring"),
        ("ring:2", "FullyConnected"),
        ("torus:3x3", "FullyConnected"),
        ("hypercube:3", "FullyConnected"),
    ],
)
def test_machines_without_ports_are_networks(name, shape):
    assert network_of(formula_topology(name)).shape == shape


@pytest.mark.parametrize(
    ("topology", "says"),
    [
        (formula_topology("switch:4"), "its links share ports, such as"),
        (
            machine(2, [Link(0, 1, 1.0, 10.0), Link(0, 1, 1.0, 10.0), Link(1, 0, 1.0, 10.0)]),
            "0 and 1 have several links",
        ),
        (machine(2, [Link(0, 1, 1.0, 10.0), Link(1, 0, 1.0, 20.0)]), "its links have different costs"),
        (machine(2, [Link(0, 1, 1.0, 0.0), Link(1, 0, 1.0, 0.0)]), "its links take no time for a byte"),
    ],
)
def test_machines_that_are_no_network_are_refused(topology, says):
    with pytest.raises(LoweringError, match=says) as caught:
        network_of(topology)
    assert "--no-network" in str(caught.value)
    made = lower_chakra(
        build_schedule(topology, Collective(Kind.BROADCAST, topology.num_ranks), 10.0, []), "a", with_network=False
    )
    assert made.network is None
    assert "network.yml" not in made.files
    assert "YOUR-NETWORK" in made.command


@pytest.mark.parametrize("name", ["", "workload", "a/b", "a\\b"])
def test_names_that_are_none_of_a_file_are_refused(name):
    with pytest.raises(InputError, match="--name"):
        lower_chakra(direct(Kind.ALLGATHER, 8000), name)


def test_sizes_that_no_field_holds_are_refused():
    with pytest.raises(LoweringError, match="less than 2\\^63 bytes"):
        lower_chakra(direct(Kind.ALLREDUCE, 2**63), "a")


def test_the_same_schedule_gives_the_same_bytes():
    one, two = (lower_chakra(gather_on_ring(4096), "a").files for _ in range(2))
    assert dict(one) == dict(two)


def test_the_wire_format_is_that_of_protobufs_documentation():
    """150 is 96 01; field 1 with it is 08 96 01; field 2 with "testing" is 12 07 and the letters; packed 3, 270, 86942 as given there."""
    assert varint(150) == bytes.fromhex("9601")
    assert integer_field(1, 150) == bytes.fromhex("089601")
    assert bytes_field(2, b"testing") == bytes.fromhex("120774657374696e67")
    assert packed_field(6, (3, 270, 86942)) == bytes.fromhex("3206038e029ea705")
    assert packed_field(4, ()) == b""
    assert varint(-2) == bytes.fromhex("feffffffffffffffff01")
    assert delimited(b"ab") == b"\x02ab"


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**31, 2**63, 2**64 - 1])
def test_numbers_read_back(value):
    assert number(varint(value), 0) == (value, len(varint(value)))


def test_ids_are_dense_in_every_file():
    for nodes in ranks_of(lower_chakra(gather_on_ring(4096), "algorithm")):
        assert [node.id for node in nodes] == list(range(len(nodes)))
        seen = defaultdict(int)
        for node in nodes:
            seen[node.type] += 1
            assert all(other < node.id for other in [*node.data_deps, *node.ctrl_deps])
        assert set(seen) == {SEND, RECEIVE}
