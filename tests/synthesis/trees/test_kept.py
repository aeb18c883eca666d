"""Plans that are kept beside the best one."""

from types import SimpleNamespace

from taccl_py.synthesis.trees.kept import best_of, coarser, rivals


def plan(end_us, num_chunks, num_messages, *, sized=False):
    """What stands for a plan: its time, pieces and messages."""
    drawn = SimpleNamespace(end_us=end_us, messages=range(num_messages))
    return SimpleNamespace(plan=drawn, num_chunks=num_chunks, transfers=range(num_messages), sized=sized)


def test_the_best_plan_is_the_coarsest_of_those_that_are_about_as_fast():
    fast, nearly = plan(100.0, 16, 160), plan(100.001, 8, 80)
    assert best_of([fast, nearly]) is nearly


def test_coarser_plans_have_fewer_pieces_and_fewer_messages():
    best = plan(100.0, 16, 160, sized=True)
    # Of a plan whose messages carry several pieces each, one with fewer pieces may have more messages, which helps nobody.
    short, long, slow = plan(101.0, 8, 80), plan(102.0, 4, 400), plan(200.0, 2, 20)
    assert coarser([best, short, long, slow]) == [short]


def test_a_rival_is_a_plan_for_which_sizes_can_be_found():
    best = plan(100.0, 16, 160, sized=True)
    near, large, far = plan(100.4, 32, 320), plan(100.2, 64, 640), plan(200.0, 8, 80)
    assert rivals(best, [best, near, large, far], 400) == [near]
    assert rivals(best, [best, near, large, far], 1000) == [large]
    # Where the best plan's sizes are still to be found, it needs none.
    assert rivals(plan(100.0, 16, 160), [near, large], 400) == []
