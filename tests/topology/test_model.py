import math
import pickle
import re

import pytest

from taccl_py.errors import InputError
from taccl_py.topology.model import Link, Port, Switch, Topology
from taccl_py.units import MAX_COST_US, MAX_RANKS, MIN_COST_US

TWO_WAY = (Link(0, 1, 1.0, 10.0), Link(1, 0, 1.0, 10.0))


IMPOSSIBLE = [math.nan, math.inf, -1.0, MAX_COST_US * 1.01, MIN_COST_US / 2]


def machine(links=TWO_WAY, ports=(), node_of=(0, 0)):
    return Topology("test", "", node_of, tuple(ports), tuple(links))


@pytest.mark.parametrize("cost", IMPOSSIBLE)
@pytest.mark.parametrize("place", ["alpha_us", "beta_us_per_mb", "latency_us"])
def test_a_cost_of_a_link_that_is_no_time_is_refused(place, cost):
    costs = {"alpha_us": 1.0, "beta_us_per_mb": 10.0, "latency_us": 0.0, place: cost}
    with pytest.raises(InputError, match=re.escape(f"link 0->1: found the cost {cost}, 0 or a number from")):
        machine([Link(0, 1, **costs)])


@pytest.mark.parametrize("cost", IMPOSSIBLE)
def test_a_cost_of_a_port_that_is_no_time_is_refused(cost):
    for port in (Port("uplink", cost, 1.0), Port("uplink", 1.0, cost)):
        with pytest.raises(InputError, match="port uplink: found the cost"):
            machine(ports=[port])


def test_the_largest_cost_is_possible():
    assert machine([Link(0, 1, MAX_COST_US, MAX_COST_US, MAX_COST_US)]).message_us(0, 1_000_000) == 3 * MAX_COST_US


def test_a_link_without_any_cost_is_refused():
    with pytest.raises(InputError, match="link 0->1: alpha and beta are both 0"):
        machine([Link(0, 1, 0.0, 0.0)])


def test_a_link_uses_a_port_once():
    with pytest.raises(InputError, match="link 0->1: names a port twice"):
        machine([Link(0, 1, 1.0, 1.0, ports=(0, 0))], [Port("uplink", 1.0, 1.0)])


def test_more_ranks_than_any_machine_has_are_refused():
    with pytest.raises(InputError, match=f"it has {MAX_RANKS + 1} ranks, at most {MAX_RANKS} are possible"):
        machine(node_of=(0,) * (MAX_RANKS + 1))


@pytest.mark.parametrize(("node_of", "empty"), [((0, 2), 1), ((1, 1), 0), ((0, -1), 1)])
def test_nodes_are_numbered_without_gaps(node_of, empty):
    with pytest.raises(InputError, match=f"node {empty} has no rank; number the nodes 0, 1, 2 and so on"):
        machine(node_of=node_of)


def test_a_switch_of_the_reversed_machine_reduces_where_it_multicast():
    switch = Switch("plane", (0, 1), multicast=True, reduce=False)
    turned = Topology("test", "", (0, 0), (), TWO_WAY, switches=(switch,)).reversed()
    assert turned.switches == (Switch("plane", (0, 1), multicast=False, reduce=True),)


def test_a_process_group_sees_of_a_switch_what_joins_its_ranks():
    links = [Link(a, b, 1.0, 1.0) for a in range(4) for b in range(4) if a != b]
    planes = (Switch("one", (0, 1, 2, 3), True, True), Switch("two", (0, 1), True, True))
    machine = Topology("test", "", (0,) * 4, (), tuple(links), switches=planes)
    assert machine.subset([3, 1]).switches == (Switch("one", (0, 1), True, True),)


def test_a_process_group_has_every_rank_once():
    with pytest.raises(InputError, match="a rank is named twice"):
        machine().subset([1, 0, 1])


def test_a_switch_joins_ranks_that_there_are():
    with pytest.raises(InputError, match="switch plane joins a rank that does not exist"):
        Topology("test", "", (0, 0), (), TWO_WAY, switches=(Switch("plane", (0, 2), True, True),))


def test_what_another_process_gets_is_the_same_machine_and_no_more():
    links = (Link(0, 1, 1.0, 2.0, 0.5, (0,)), Link(1, 0, 1.0, 2.0), Link(1, 0, 3.0, 0.0, ports=(0, 1)))
    ports = (Port("a", 1.0, 2.0), Port("b", 0.0, 3.0))
    topology = Topology(
        "two", "by hand", (0, 0), ports, links, symmetry=((1, 0),), switches=(Switch("s", (0, 1), True, False),)
    )
    size = len(pickle.dumps(topology))
    assert topology.links_between[1, 0] == (1, 2)
    assert topology.lane == (0, 0, 1)
    assert len(pickle.dumps(topology)) == size
    other = pickle.loads(pickle.dumps(topology))
    assert other == topology
    assert other.lane == topology.lane
    alone = Topology("one", "by hand", (0,), (), ())
    assert pickle.loads(pickle.dumps(alone)) == alone
