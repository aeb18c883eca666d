"""AllReduce over 2^n nodes by halving, an exchange and doubling, in messages of unequal size and in pieces that overlap.

A node adds up what it has for others and passes it on: half of everything to the node on the other side of the cluster, half of the
rest to one of its own half, and so on, until few nodes are left that have added up the same part for all. These *exchange* sums: of
two of them each sends the whole part once instead of half of it twice. Then everything goes back along the same paths, and is handed
out. Lanes do so each for themselves, and need no more bandwidth than a ReduceScatter and an AllGather.

What is added up first and what is handed out last keep the lanes waiting. So the largest step goes in several messages, of which the
outermost are small; and where nodes are as busy inside as between them, data is cut into pieces, of which one is added up
while another one is handed out. The sizes are a linear program on one node and one lane, which stand for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise, product

from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.apportion import apportion
from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.hierarchy.gather import add_up, hand_out
from taccl_py.synthesis.hierarchy.outline import ACROSS, INSIDE
from taccl_py.synthesis.hierarchy.params import PARAMS
from taccl_py.synthesis.hierarchy.stages import Stage, keep_order, schedule_stages
from taccl_py.synthesis.sizes import ConstraintRows
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplateMessages, in_order
from taccl_py.synthesis.templates.params import PARAMS as TEMPLATE_PARAMS
from taccl_py.synthesis.templates.patterns import DOUBLING
from taccl_py.tolerances import DIGITS
from taccl_py.units import BYTES_PER_MB


@dataclass(frozen=True, slots=True)
class HalvingShape:
    """Stages of halving and doubling, without sizes.

    Attributes
    ----------
    together
        Nodes that exchange sums; if these are all nodes, there are no steps.
    messages
        Messages of every step between groups of them, from the one between neighbours on.
    pieces
        Pieces that data is cut into.
    inside
        How nodes add up and hand out: ``direct`` or ``doubling``.
    """

    together: int
    messages: tuple[int, ...]
    pieces: int
    inside: str

    @property
    def columns(self) -> int:
        """Sizes of one piece: that of what a group adds up, then those of all messages."""
        return 1 + sum(self.messages)

    def column(self, piece: int, step: int, message: int) -> int:
        """Column of a message's size."""
        return piece * self.columns + 1 + sum(self.messages[:step]) + message

    def of_step(self, piece: int, step: int) -> range:
        """Columns of the sizes of a step's messages."""
        return range(self.column(piece, step, 0), self.column(piece, step, self.messages[step]))


@dataclass(frozen=True, slots=True)
class HalvingStage:
    """A stage whose time depends on one size.

    Attributes
    ----------
    resource
        Whether it is inside nodes or across.
    column
        The size.
    after
        Tasks that it waits for.
    """

    resource: int
    column: int
    after: tuple[int, ...]


@dataclass(frozen=True)
class PieceStages:
    """Tasks of one piece, by what they do; numbers are those of all tasks.

    Attributes
    ----------
    added, sent, brought, handed
        Of every message of the steps, by the column of its size: adding up inside nodes, halving, doubling, handing out.
    own, met, given
        Adding up what the own group has, rounds of the exchange, handing it out.
    """

    added: Mapping[int, int]
    sent: Mapping[int, int]
    own: int
    met: tuple[int, ...]
    given: int
    brought: Mapping[int, int]
    handed: Mapping[int, int]


@dataclass(frozen=True)
class Halving:
    """A shape with sizes, and its times.

    Attributes
    ----------
    shape
        What is done.
    units
        Sizes in chunks, a column each; see `HalvingShape`.
    chunks_per_rank
        Chunks that a rank's shard is cut into.
    courses, stages
        What there is to do for every piece, and when.
    """

    shape: HalvingShape
    units: tuple[int, ...]
    chunks_per_rank: int
    courses: tuple[PieceStages, ...]
    stages: tuple[Stage, ...]

    @property
    def end_us(self) -> float:
        """Time when all should be done."""
        return max(stage.end_us for stage in self.stages)


def halvings(
    cluster: LaneCluster, insides: Sequence[str], shard_bytes: float, counts: Sequence[int], limits: Limits
) -> Iterator[Halving]:
    """Variants of halving and doubling with their times; none where nodes differ or are not 2^n.

    Parameters
    ----------
    cluster, insides
        The machine, and how its nodes may hand out.
    shard_bytes
        What one rank would have of the sum.
    counts
        Into how many chunks that may be cut, ascending.
    limits
        Time after which no more sizes are looked for, and the user's interrupt.
    """
    planner = _Planner.of(cluster, shard_bytes)
    if planner is None:
        return
    guessed = sorted(
        ((schedule_stages(planner.stages(shape, planner.guess(shape))), shape) for shape in _shapes(cluster, insides)),
        key=lambda each: each[0],
    )
    over = limits.countdown()
    sized: list[Sized] = []
    for guess_us, shape in guessed[: PARAMS.most_halvings_sized]:
        if guess_us > PARAMS.halving_guess_factor * guessed[0][0]:
            break
        sized.append(planner.sized(shape, limits))
        if over():
            break
    sized.sort(key=lambda each: each.end_us)
    for each in sized[: PARAMS.most_halvings_cut]:
        found = planner.cut(each, counts)
        if found is not None:
            yield found


def _shapes(cluster: LaneCluster, insides: Sequence[str]) -> Iterator[HalvingShape]:
    powers = len(cluster.nodes).bit_length()
    for inside, power, pieces in product(insides, range(powers), PARAMS.halving_pieces):
        steps = powers - 1 - power
        if not steps:
            yield HalvingShape(1 << power, (), pieces, inside)
            continue
        for last, before in product(
            PARAMS.halving_last_messages, PARAMS.halving_messages if steps > 1 else PARAMS.halving_messages[:1]
        ):
            if last >= before:
                yield HalvingShape(1 << power, (*[1] * (steps - 2), *[before][: steps - 1], last), pieces, inside)


@dataclass(frozen=True, slots=True)
class Sized:
    """A shape with sizes in bytes, a column each, and the order of its stages."""

    end_us: float
    shape: HalvingShape
    sizes: list[float]
    order: list[int]


def _order(stages: Sequence[Stage]) -> list[int]:
    return sorted(range(len(stages)), key=lambda number: (stages[number].start_us, number))


@dataclass(frozen=True)
class _Planner:
    """A cluster with a size.

    Attributes
    ----------
    cluster
        The machine.
    lane_bytes
        What a lane carries of everything.
    """

    cluster: LaneCluster
    lane_bytes: float

    @staticmethod
    def of(cluster: LaneCluster, shard_bytes: float) -> _Planner | None:
        """None where the machine is not of the sort."""
        nodes, sizes = len(cluster.nodes), {len(ranks) for ranks in cluster.nodes}
        if nodes & (nodes - 1) or len(sizes) > 1 or sizes.pop() % cluster.width:
            return None
        return _Planner(cluster, shard_bytes * cluster.sharing * nodes)

    def groups(self, shape: HalvingShape) -> int:
        """Groups of nodes that exchange sums."""
        return len(self.cluster.nodes) // shape.together

    def guess(self, shape: HalvingShape) -> list[float]:
        """Sizes in bytes that are not unreasonable."""
        block = self.lane_bytes / self.groups(shape) / shape.pieces
        piece = [block]
        for step, number in enumerate(shape.messages):
            weights = [PARAMS.halving_shrink**turn for turn in range(number)]
            piece += [(block * (1 << step)) * weight / sum(weights) for weight in weights]
        return piece * shape.pieces

    def sized(self, shape: HalvingShape, limits: Limits) -> Sized:
        """The shape with the best sizes for the order of its stages, which are then put in order anew, and so on."""
        sizes = self.guess(shape)
        stages = self.stages(shape, sizes)
        end_us = schedule_stages(stages)
        best = Sized(end_us, shape, sizes, _order(stages))
        order = best.order
        for _ in range(PARAMS.halving_rounds):
            found = self._best_sizes(shape, sizes, order, limits)
            if found is None:
                break
            sizes = found
            for again in (False, True):
                stages = self.stages(shape, sizes)
                end_us = schedule_stages(stages) if again else keep_order(stages, order)
                if end_us < best.end_us:
                    best = Sized(end_us, shape, sizes, _order(stages))
            if order == _order(stages):
                break
            order = _order(stages)
        return best

    def stages(self, shape: HalvingShape, sizes: Sequence[float], units: Sequence[int] | None = None) -> list[Stage]:
        """Stages without their times."""
        # A size is that of some stages on each of the resources.
        known: dict[tuple[int, int], tuple[float, ...]] = {}
        found = []
        for task in _tasks(shape)[0]:
            key = (task.resource, task.column)
            if key not in known:
                known[key] = self._steps(shape, task, sizes[task.column], units[task.column] if units else 1)
            found.append(Stage(known[key], task.resource, task.after))
        return found

    def cut(self, sized: Sized, counts: Sequence[int]) -> Halving | None:
        """With the fewest chunks that are about as good as any number of them; None if none of the numbers will do."""
        found: list[Halving] = []
        shape = sized.shape
        for count in counts:
            units = self._units(shape, sized.sizes, count) if count <= PARAMS.most_halving_chunks else None
            if units is not None:
                chunk_bytes = self.lane_bytes / (len(self.cluster.nodes) * self.cluster.sharing * count)
                stages = self.stages(shape, [chunk_bytes * number for number in units], units)
                keep_order(stages, sized.order)
                found.append(Halving(shape, tuple(units), count, _tasks(shape)[1], tuple(stages)))
        limit_us = min((each.end_us for each in found), default=0.0) * (1 + PARAMS.least_halving_gain)
        return next((each for each in found if each.end_us <= limit_us), None)

    def _units(self, shape: HalvingShape, sizes: Sequence[float], count: int) -> list[int] | None:
        """Sizes in chunks, as near as may be; None if that leaves something empty."""
        width = shape.columns
        blocks = apportion(
            [sizes[piece * width] for piece in range(shape.pieces)], shape.together * self.cluster.sharing * count
        )
        units: list[int] = []
        for piece, block in enumerate(blocks):
            units.append(block)
            for step in range(len(shape.messages)):
                units += apportion([sizes[column] for column in shape.of_step(piece, step)], block << step)
        return units if all(units) else None

    def _steps(self, shape: HalvingShape, task: HalvingStage, num_bytes: float, units: int) -> tuple[float, ...]:
        """Times of a task's steps."""
        cluster = self.cluster
        if task.resource == ACROSS:
            more = -(-units // cluster.site.message_chunks) - 1
            return (cluster.lane_us(num_bytes) + more * cluster.lane_us(0.0),)
        size = len(cluster.nodes[0])
        if shape.inside != DOUBLING:
            return (cluster.node_us(num_bytes),) * -(-(size - 1) // cluster.at_once)
        steps = []
        for together in (1 << step for step in range(size.bit_length() - 1)):
            runs = min(together, -(-int(num_bytes * together) // TEMPLATE_PARAMS.most_packed_bytes))
            steps.append(cluster.node_us(num_bytes * together) + (max(1, runs) - 1) * cluster.node_us(0.0))
        return tuple(steps)

    def _best_sizes(
        self, shape: HalvingShape, sizes: Sequence[float], order: Sequence[int], limits: Limits
    ) -> list[float] | None:
        """Sizes for which the order of the stages takes least time; None if the limits came first."""
        tasks, _ = _tasks(shape)
        stages = self.stages(shape, sizes)
        end = len(sizes) + len(tasks)
        rows = ConstraintRows()
        rows.add(
            [(p * shape.columns, float(self.groups(shape))) for p in range(shape.pieces)],
            *[self.lane_bytes / BYTES_PER_MB] * 2,
        )
        for piece, step in product(range(shape.pieces), range(len(shape.messages))):
            messages = [(column, 1.0) for column in shape.of_step(piece, step)]
            rows.add([*messages, (piece * shape.columns, -float(1 << step))], 0.0, 0.0)

        alphas_us = [sum(self._steps(shape, task, 0.0, 1)) for task in tasks]
        slopes = [
            (sum(stage.step_us) - alpha_us) / (sizes[task.column] / BYTES_PER_MB)
            for task, stage, alpha_us in zip(tasks, stages, alphas_us, strict=True)
        ]

        def follows(later: int, number: int) -> None:
            column = tasks[number].column
            rows.add([(later, 1.0), (len(sizes) + number, -1.0), (column, -slopes[number])], alphas_us[number])

        for number, task in enumerate(tasks):
            follows(end, number)
            for before in task.after:
                follows(len(sizes) + number, before)
        for resource in (INSIDE, ACROSS):
            for before, after in pairwise(number for number in order if tasks[number].resource == resource):
                follows(len(sizes) + after, before)
        optimum = rows.least(end, limits)
        if optimum is None:
            return None
        return [max(float(value), 1e-9) * BYTES_PER_MB for value in optimum.values[: len(sizes)].round(DIGITS)]


# The same few shapes are asked for at every size.
@lru_cache(maxsize=1024)
def _tasks(shape: HalvingShape) -> tuple[tuple[HalvingStage, ...], tuple[PieceStages, ...]]:
    """Everything there is to do."""
    tasks: list[HalvingStage] = []

    def add(resource: int, column: int, *after: int) -> int:
        tasks.append(HalvingStage(resource, column, after))
        return len(tasks) - 1

    courses = []
    steps = range(len(shape.messages))
    for piece in range(shape.pieces):
        before: tuple[int, ...] = ()
        added, sent, brought, handed = dict[int, int](), dict[int, int](), dict[int, int](), dict[int, int]()
        columns = [column for step in steps for column in shape.of_step(piece, step)]
        for column in reversed(columns):
            added[column] = add(INSIDE, column)
            sent[column] = add(ACROSS, column, added[column], *before)
            before = (sent[column],)
        block = piece * shape.columns
        own = add(INSIDE, block)
        before, met = (own, *before), list[int]()
        for _ in range(shape.together.bit_length() - 1):
            met.append(add(ACROSS, block, *before))
            before = (met[-1],)
        given = add(INSIDE, block, *before)
        for column in columns:
            brought[column] = add(ACROSS, column, *before)
            handed[column] = add(INSIDE, column, brought[column])
            before = (brought[column],)
        courses.append(PieceStages(added, sent, own, tuple(met), given, brought, handed))
    return tuple(tasks), tuple(courses)


def halving_messages(cluster: LaneCluster, back: LaneCluster, halving: Halving) -> TemplateMessages | None:
    """Messages of the stages; None if some node cannot hand out.

    Parameters
    ----------
    cluster, back
        The machine, and the machine turned around.
    halving
        What is done, and when.
    """
    writer = _HalvingWriter(cluster, back, halving)
    fine = all(writer.write(piece) for piece in range(halving.shape.pieces))
    return in_order(writer.messages) if fine else None


class _HalvingWriter:
    """Messages of all nodes."""

    def __init__(self, cluster: LaneCluster, back: LaneCluster, halving: Halving) -> None:
        self.messages: list[TemplateMessage] = []
        self._cluster, self._back, self._halving = cluster, back, halving
        self._groups = len(cluster.nodes) // halving.shape.together
        # Pieces follow each other, in them lanes, in them what groups add up.
        blocks = [halving.units[piece * halving.shape.columns] for piece in range(halving.shape.pieces)]
        self._blocks = blocks
        self._first = list(accumulate((block * self._groups * cluster.width for block in blocks), initial=0))

    def write(self, piece: int) -> bool:
        """All of a piece; whether nodes can hand out."""
        halving, course, shape = self._halving, self._halving.courses[piece], self._halving.shape
        block, together, nodes = self._blocks[piece], shape.together, range(len(self._cluster.nodes))
        own = [range((node // together) * block, (node // together + 1) * block) for node in nodes]
        fine = self._inside(piece, own, course.own, inward=True) and self._inside(
            piece, own, course.given, inward=False
        )
        for bit, task in enumerate(course.met):
            for node in nodes:
                self._cross(piece, node, node ^ (1 << bit), own[node], task, reduce=True)
        for step in range(len(shape.messages)):
            ends = list(accumulate((halving.units[column] for column in shape.of_step(piece, step)), initial=0))
            for column, (low, high) in zip(shape.of_step(piece, step), pairwise(ends), strict=True):
                # What lies on the other side, seen from each node.
                other = []
                for node in nodes:
                    start = ((node // together ^ (1 << step)) >> step << step) * block
                    other.append(range(start + low, start + high))
                fine = fine and self._inside(piece, other, course.added[column], inward=True)
                fine = fine and self._inside(piece, other, course.handed[column], inward=False)
                for node in nodes:
                    partner = node ^ (together << step)
                    self._cross(piece, node, partner, other[node], course.sent[column], reduce=True)
                    self._cross(piece, node, partner, other[partner], course.brought[column], reduce=False)
        return fine

    def _chunks(self, piece: int, lane: int, units: range) -> tuple[int, ...]:
        first = self._first[piece] + lane * self._blocks[piece] * self._groups
        return tuple(first + unit for unit in units)

    def _cross(self, piece: int, src: int, dst: int, units: range, task: int, *, reduce: bool) -> None:
        """A message of every lane."""
        stage, carriers = self._halving.stages[task], self._cluster.carriers
        for lane, (rank, other) in enumerate(zip(carriers[src], carriers[dst], strict=True)):
            self.messages.append(
                TemplateMessage(
                    rank, other, self._chunks(piece, lane, units), stage.start_us, stage.end_us, reduce=reduce
                )
            )

    def _inside(self, piece: int, units: Sequence[range], task: int, *, inward: bool) -> bool:
        """Add up, or hand out, inside every node what its lanes have of something; whether that is possible."""
        stage = self._halving.stages[task]
        held: Mapping[int, tuple[int, ...]] = {
            rank: self._chunks(piece, lane, units[node])
            for node, carriers in enumerate(self._cluster.carriers)
            for lane, rank in enumerate(carriers)
        }
        inside, by_partner = self._halving.shape.inside, Stage(self._steps(stage), INSIDE, (), stage.start_us)
        found = (
            add_up(self._back, inside, held, by_partner) if inward
            else hand_out(self._cluster, inside, held, by_partner)
        )  # fmt: skip
        self.messages += found or ()
        return found is not None

    def _steps(self, stage: Stage) -> tuple[float, ...]:
        """A step for each partner where there are several at a time."""
        size, inside = len(self._cluster.nodes[0]), self._halving.shape.inside
        if inside == DOUBLING or len(stage.step_us) == size - 1:
            return stage.step_us
        return tuple(sum(stage.step_us) / (size - 1) for _ in range(size - 1))
