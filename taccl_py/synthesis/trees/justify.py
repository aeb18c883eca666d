"""Plans of trees whose messages are justified (`taccl_py.synthesis.justify`), and searches near them.

Plans that justification makes no shorter are changed a little in a window of time, and justified again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taccl_py.solvers.limits import Over
from taccl_py.synthesis.justify import JustifiedMessages
from taccl_py.synthesis.trees.order import OrderChoice, TransferTimes, TreeMessage, TreePlan


def justified(times: TransferTimes, plan: TreePlan) -> TreePlan:
    """The same messages in an order that takes no longer."""
    line = _JustifiedTrees(times, plan)
    return line.plan(line.messages.justified(line.start_us))


def searched(choice: OrderChoice, seed: int, over: Over) -> OrderChoice:
    """The best of many plans with the same messages, each a little different from the best one before.

    Parameters
    ----------
    choice
        A plan.
    seed
        Random seed.
    over
        Whether there is no time left.
    """
    line = _JustifiedTrees(TransferTimes(choice.transfers, choice.costs), choice.plan)
    best_us = line.messages.searched(line.start_us, seed, over)
    plan = line.plan(best_us)
    return choice if plan.end_us >= choice.plan.end_us else replace(choice, plan=plan, rule=None)


class _JustifiedTrees:
    """Messages of a plan of trees, and times for them.

    Parameters
    ----------
    times, plan
        Transfers at some costs, and a plan of theirs.
    """

    def __init__(self, times: TransferTimes, plan: TreePlan) -> None:
        self._times, self._planned = times, plan.messages
        transfers = times.transfers
        message_of = {index: number for number, each in enumerate(plan.messages) for index in each.transfers}
        sizes = [sum(times.sizes[index] for index in each.transfers) for each in plan.messages]
        costs = [
            times.costs.of_message(transfers[each.transfers[0]].link, size)
            for each, size in zip(plan.messages, sizes, strict=True)
        ]
        self._lasting_us = [cost.time_us for cost in costs]
        self.messages = JustifiedMessages(
            [
                {message_of[earlier] for index in each.transfers for earlier in transfers[index].after}
                for each in plan.messages
            ],
            self._lasting_us,
            [cost.occupied for cost in costs],
        )

    @property
    def start_us(self) -> list[float]:
        """Starts in the plan, [message]."""
        return [each.start_us for each in self._planned]

    def plan(self, start_us: Sequence[float]) -> TreePlan:
        """The plan in which links and ports take messages in the order of such starts."""
        pairs = zip(self._planned, start_us, self._lasting_us, strict=True)
        return self._times.left_shifted(
            [TreeMessage(each.transfers, start, start + lasting_us) for each, start, lasting_us in pairs]
        )
