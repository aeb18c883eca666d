"""Schedules of demands with one worker for each rank: threads and queues here, processes of MPI and torch in their tests."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.execute.demand import RunnableDemand, draw_inputs, run_demand
from taccl_py.execute.demand_processes import run_demand_among
from taccl_py.schedule.demand_files import write_demand_schedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.demands import solve_demand
from tests.demand.cases import MIXED, demand_of, demands, full, ring, switch


class Post:
    """Messages between threads, and a place where they meet."""

    def __init__(self, num_ranks):
        self.boxes, self.lock = {}, threading.Lock()
        self.barrier, self.reports = threading.Barrier(num_ranks), [None] * num_ranks

    def box(self, *key):
        with self.lock:
            return self.boxes.setdefault(key, queue.Queue())


class Mail:
    """What one of the threads sees."""

    def __init__(self, post, rank):
        self.post, self.rank = post, rank

    def send(self, values, rank, tag):
        self.post.box(self.rank, rank, tag).put(values)

    def receive(self, values, rank, tag):
        values[...] = self.post.box(rank, self.rank, tag).get(timeout=20)

    def finish(self):
        pass

    def gather(self, value):
        self.post.barrier.wait(20)
        self.post.reports[self.rank] = value
        self.post.barrier.wait(20)
        return list(self.post.reports)


def among_threads(runnable, seed=0):
    post, inputs = Post(runnable.num_ranks), draw_inputs(runnable.demand, seed)
    with ThreadPoolExecutor(runnable.num_ranks) as pool:
        works = [pool.submit(run_demand_among, runnable, inputs, Mail(post, r)) for r in range(runnable.num_ranks)]
        return [work.result() for work in works]


def runnable_of(demand, machine):
    schedule = solve_demand(machine, demand, Limits(seconds=0.05, by_work=True)).schedule
    return RunnableDemand.read(write_demand_schedule(schedule), "schedule.json")


@settings(max_examples=12, deadline=None)
@given(demand=demands(8), machine=st.sampled_from([full, ring, switch]))
def test_every_rank_alone_has_what_all_have_together(demand, machine):
    runnable = runnable_of(demand, machine(demand.num_ranks))
    together = run_demand(runnable, draw_inputs(demand, 0))
    alone = among_threads(runnable)
    assert together.num_wrong == 0
    for rank, run in enumerate(alone):
        assert run.num_wrong == 0
        assert run.outputs[rank].tobytes() == together.outputs[rank].tobytes()


def test_what_is_wrong_on_one_rank_is_known_on_all():
    whole = runnable_of(demand_of(4, MIXED), full(4))
    without = RunnableDemand(whole.demand, whole.messages[1:], "schedule.json")
    runs = among_threads(without)
    assert len({run.num_wrong for run in runs}) == 1
    assert runs[0].num_wrong > 0
    assert all("another element" in run.first_wrong for run in runs)
