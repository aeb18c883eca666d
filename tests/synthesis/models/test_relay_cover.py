"""Which messages serve all pairs: the same answer as trying every choice."""

import random
from dataclasses import replace
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.models import relay_cover
from taccl_py.synthesis.models.relay_cover import Relay, RelayCover, choose_relays, has_no_choice
from tests.instances import quiet_pulp

pytestmark = quiet_pulp

LIMITS = Limits(seconds=20)


def drawn_cover(rng):
    """Up to eight messages between three givers and three takers, in groups of which one may be sent."""
    givers, takers = (0, 1, 2), (3, 4, 5)
    relays = tuple(
        Relay(
            i, 0.0, frozenset(rng.sample(givers, rng.randint(1, 3))), frozenset(rng.sample(takers, rng.randint(1, 3)))
        )
        for i in range(rng.randint(1, 8))
    )
    number = len(relays)
    groups = tuple(tuple(sorted(rng.sample(range(number), rng.randint(1, number)))) for _ in range(rng.randint(0, 4)))
    return RelayCover(givers, takers, relays, groups)


def serves_all(cover, sent):
    served = {(g, t) for i in sent for g in cover.relays[i].told for t in cover.relays[i].reached}
    return served >= set(product(cover.givers, cover.takers)) and all(
        sum(i in sent for i in group) <= 1 for group in cover.groups
    )


def any_serves_all(cover):
    number = len(cover.relays)
    return any(serves_all(cover, {i for i in range(number) if mask >> i & 1}) for mask in range(1 << number))


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_a_choice_is_found_exactly_where_there_is_one(seed):
    cover = drawn_cover(random.Random(seed))
    chosen = choose_relays(cover, LIMITS)
    assert (chosen is not None) == any_serves_all(cover)
    assert has_no_choice(cover, LIMITS) == (chosen is None)
    if chosen is not None:
        assert serves_all(cover, {relay.link for relay in chosen})


@settings(max_examples=30)
@given(st.integers(0, 2**32))
def test_what_is_too_much_work_for_one_solver_is_proved_by_the_other(seed):
    cover = drawn_cover(random.Random(seed))
    params, relay_cover.PARAMS = relay_cover.PARAMS, replace(relay_cover.PARAMS, cp_work=1e-12)
    try:
        assert has_no_choice(cover, LIMITS) == (not any_serves_all(cover))
    finally:
        relay_cover.PARAMS = params
