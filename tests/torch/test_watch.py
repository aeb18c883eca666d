"""Calls that do not end because ranks make different ones are ended; others may take as long as they like."""

import threading

from taccl_py.torch.watch import CallWatch, OpenCall
from tests.patience import HANGS_SECONDS


class Store:
    """What processes write into and read from, in one process."""

    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value.encode()

    def check(self, keys):
        return all(key in self.values for key in keys)

    def get(self, key):
        return self.values[key]


def begin(store, rank, text, *, number=3, num_ranks=2):
    """A rank that watches a call of its own, and what is set when the connections are closed."""
    watch, closed = CallWatch(0.02), threading.Event()
    call = OpenCall("place", rank, num_ranks, text, [(number - 1, "before"), (number, text)], closed.set)
    watch.begin(call)
    watch.start(store)
    return watch, call, closed


def test_ranks_in_different_calls_are_closed_on_all_sides():
    store = Store()
    ranks = [begin(store, rank, f"call {rank}") for rank in range(2)]
    for watch, _, closed in ranks:
        assert closed.wait(HANGS_SECONDS)
        watch.stop()
    assert ranks[0][0].explain(ranks[0][1]) == "ranks make different calls: rank 0: call 0; rank 1: call 1"


def test_ranks_in_the_same_call_or_in_an_earlier_one_are_waited_for(monkeypatch):
    """Rank 1 is in the call before; rank 2 is in the same call."""
    store = Store()
    store.set("place/1", '[[1, "long ago"], [2, "before"]]')
    store.set("place/2", '[[3, "a call"]]')
    watch, call, closed = begin(store, 0, "a call", num_ranks=3)
    assert not closed.wait(0.3)
    assert store.check(["place/0"])
    watch.end()
    watch.stop()
    assert not closed.is_set()
    monkeypatch.setattr("taccl_py.torch.watch._EXPLAIN_SECONDS", 0.1)
    assert watch.explain(call) == ""


def test_a_rank_that_has_gone_on_is_still_found_out():
    """Rank 1 has made another call 3, which has ended, and waits in its call 4."""
    store = Store()
    store.set("place/1", '[[2, "before"], [3, "another call"], [4, "a call"]]')
    watch, call, closed = begin(store, 0, "a call")
    assert closed.wait(HANGS_SECONDS)
    watch.stop()
    assert watch.explain(call) == "ranks make different calls: rank 0: a call; rank 1: another call"


def test_a_call_that_ends_is_told_to_nobody():
    store = Store()
    watch = CallWatch(0.05)
    watch.start(store)
    for number in range(20):
        watch.begin(OpenCall("place", 0, 2, "a call", [(number, "a call")], lambda: None))
        watch.end()
    watch.stop()
    assert store.values == {}


def test_without_a_store_nothing_is_watched_or_explained():
    watch = CallWatch(0.01)
    watch.start(None)
    call = OpenCall("place", 0, 2, "a call", [(0, "a call")], lambda: None)
    watch.begin(call)
    assert watch.explain(call) == ""
    watch.stop()
