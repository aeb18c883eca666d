"""Search on a machine as protocols see it: what comes first of all that is found."""

from dataclasses import replace
from itertools import count

import pytest

from taccl_py.collective import Kind
from taccl_py.pipeline import views
from taccl_py.profiles.catalog import load_profile
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.bounds.runtime import ProtocolView
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.engine import Demand, Events, Options, Proof, Synthesis
from taccl_py.topology.catalog import load_topology
from taccl_py.work import count_seconds
from tests.instances import MB
from tests.pipeline.test_select import exchange


def test_the_best_of_the_machine_and_of_every_view_come_first(monkeypatch):
    """Two runners-up of the machine, three schedules each of two views: all the firsts, then all the seconds, the same one once."""
    best, delays = exchange(Kind.ALLGATHER, MB), count(1)

    def other():
        delay = next(delays)
        moved = tuple(replace(m, start_us=m.start_us + delay, end_us=m.end_us + delay) for m in best.messages)
        return replace(best, messages=moved)

    own, one, two = [other(), other()], [other(), other(), other()], [other(), other(), other()]
    two[0] = own[0]
    answer = Synthesis(best, Bound(1.0, "made up"), Proof.FEASIBLE, "none", {}, tuple(own))
    monkeypatch.setattr(views, "load_engine", lambda _: lambda *_: answer)
    monkeypatch.setattr(views, "likely_views", lambda *_: [ProtocolView("LL", 1), ProtocolView("Simple", 1)])
    found = iter([one, two])
    monkeypatch.setattr(views, "schedules_under", lambda *_: next(found))
    demand = Demand(best.topology, Kind.ALLGATHER, float(MB))
    given = views.search(demand, "auto", Options(limits=Limits(60)), load_profile("rccl-mi300x"), Events())
    assert list(given.runners_up) == [own[0], one[0], own[1], one[1], two[1], one[2], two[2]]


def test_a_reduce_is_also_made_of_allreduces_in_which_its_root_sends(monkeypatch):
    """MI300X: the root, whose part others add up, sends them its contributions and gets sums that are complete."""
    monkeypatch.setattr(views, "load_engine", lambda _: load_engine("templates"))
    topology = load_topology("mi300x")
    demand = Demand(topology, Kind.REDUCE, float(MB), root=3)
    limits = Limits(seconds=0.2, workers=1, by_work=True)
    given = views.search(demand, "auto", Options(limits=limits), load_profile("rccl-mi300x"), Events())
    found = [given.schedule, *given.runners_up]
    of_root = [s for s in found if any(topology.links[message.link].src == 3 for message in s.messages)]
    assert of_root
    assert {each.collective.root for each in of_root} == {3}


@pytest.mark.parametrize(
    ("machine", "profile", "engines"),
    [("mi300x", "rccl-mi300x", {"auto", "templates", "greedy"}), ("ndv4", "executor-a100", {"auto", "templates"})],
)
def test_where_sums_are_steps_of_their_own_engine_greedy_makes_allreduces_too(monkeypatch, machine, profile, engines):
    """RCCL has no fused receive and sum, the executor has."""
    asked = set()

    def load(name):
        asked.add(name)
        return load_engine("templates")

    monkeypatch.setattr(views, "load_engine", load)
    demand = Demand(load_topology(machine), Kind.REDUCE, float(MB), root=0)
    limits = Limits(seconds=0.2, workers=1, by_work=True)
    views.search(demand, "auto", Options(limits=limits), load_profile(profile), Events())
    assert asked == engines


@pytest.mark.parametrize("kind", [Kind.REDUCE, Kind.ALLREDUCE])
def test_parts_of_allreduces_are_made_even_where_the_work_is_done(monkeypatch, kind):
    """The search for one protocol uses up the work: no other is searched for, but a Reduce gets parts of AllReduces, which are soon found."""
    asked = []

    def load(name):
        engine = load_engine("templates")

        def run(*given):
            asked.append(name)
            answer = engine(*given)
            if name == "auto":
                count_seconds(100.0)
            return answer

        return run

    monkeypatch.setattr(views, "load_engine", load)
    monkeypatch.setattr(views, "likely_views", lambda *_: [ProtocolView("LL", 1), ProtocolView("Simple", 1)])
    demand = Demand(load_topology("mi300x"), kind, float(MB), root=0)
    limits = Limits(seconds=0.5, workers=1, by_work=True)
    views.search(demand, "auto", Options(limits=limits), load_profile("rccl-mi300x"), Events())
    assert asked.count("auto") == 2
    parts = ["templates", "greedy"] if kind is Kind.REDUCE else []
    assert [name for name in asked if name != "auto"] == 2 * parts


@pytest.mark.parametrize(
    ("work_s", "view_s", "views_searched"),
    [(2.75, 1.0, 2), (4.2, 1.0, 2), (2.75, 1.8, 1), (4.2, 1.8, 1), (2.0, 1.8, 2)],
)
def test_as_many_protocols_are_searched_for_as_there_is_time_for_each(monkeypatch, work_s, view_s, views_searched):
    """Five seconds, of which the machine itself has 2.75, and what it takes beyond is not taken from others; each needs a fifth of what it took."""
    best, asked = exchange(Kind.ALLGATHER, MB), []
    answer = Synthesis(best, Bound(1.0, "made up"), Proof.FEASIBLE, "none", {}, ())

    def own(*_):
        count_seconds(work_s)
        return answer

    def under(*given):
        asked.append(given[2].protocol)
        count_seconds(view_s)
        return [best]

    monkeypatch.setattr(views, "load_engine", lambda _: own)
    monkeypatch.setattr(views, "likely_views", lambda *_: [ProtocolView("LL", 1), ProtocolView("Simple", 1)])
    monkeypatch.setattr(views, "schedules_under", under)
    demand = Demand(best.topology, Kind.ALLGATHER, float(MB))
    limits = Limits(seconds=5.0, workers=1, by_work=True)
    views.search(demand, "auto", Options(limits=limits), load_profile("rccl-mi300x"), Events())
    assert asked == ["LL", "Simple"][:views_searched]
