"""Delivery: a schedule becomes a program and its text; what leaves here has passed the verifier of its runtime."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from taccl_py.collective import Collective, Kind
from taccl_py.errors import Interrupted, InvalidArtifact, LoweringError, require_verdict
from taccl_py.lowering.copies import OneInstance
from taccl_py.lowering.fold import folded, sent_steps
from taccl_py.lowering.group_programs import (
    Patterns,
    alone,
    find_peers,
    has_images,
    join_ranks,
    lower_patterns,
    lower_ranks,
    require_agreement,
)
from taccl_py.lowering.limits import require_limits
from taccl_py.lowering.lower import Lowering, LoweringOptions, PortOrder, Room
from taccl_py.lowering.msccl_xml import emit_xml, parse_xml
from taccl_py.lowering.mscclpp import LoweredPlan, PlanOptions, lower_plan
from taccl_py.lowering.program import Program
from taccl_py.pipeline.search import chosen_instead, require_valid
from taccl_py.runtimes import MAX_COUNT, Runtime
from taccl_py.schedule.group import MOST_WHOLE, GroupSchedule
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.recognize import as_group
from taccl_py.simulate.program_replay import replay_program
from taccl_py.simulate.timeline import Timeline
from taccl_py.solvers.limits import Over, never
from taccl_py.synthesis.engine import Synthesis
from taccl_py.synthesis.messages import bounded_by_messages
from taccl_py.verify.msccl import ProgramVerdict, ProgramVerifier, verify_program
from taccl_py.verify.mscclpp import verify_plan
from taccl_py.work import count_work

# Lowering orders the messages at ports only when the replay would be slower than the schedule by more than this.
_REPLAY_TOLERANCE = 0.002
# Chunks that all messages carry together: beyond which ranks are lowered one by one where they are symmetric, as all at once take
# seconds; and beyond which chunks are copied for that, as all at once take minutes.
_MANY_CHUNKS, _MOST_CHUNKS = 20_000, 200_000
# Ranks for each one that is lowered, at least, for that to pay: alone a rank takes about four times its part of all at once, perhaps in
# several rounds (two MI250X nodes, trees of AllReduce of 256 MiB, two ranks for each: 18 s one by one, 6 s at once).
_LEAST_IMAGES = 6
# Seconds of work that may be repeated after an interrupt.
_SOON_S = 2.0
# Part of the work of lowering after which it is known that there is no room for the program. Measured: 136 to 544 messages, 16 instances.
_NO_ROOM = 0.2
# Part of the work of lowering that other threadblocks for the same actions take. Measured: 368 to 1920 messages.
_REARRANGED = 0.3
# A replay within this factor of the schedule's time keeps its promise.
_KEPT_PROMISE = 1.01
# Errors that ranks wait for each other, which none of them sees while it is lowered by itself.
_NEVER_ENDS = frozenset({"deadlock", "fifo-deadlock"})
# Port orders to try then; sums conflict where they arrive, so ordering only the sends does not help them.
_PORT_ORDERS = {False: (PortOrder.SENDS, PortOrder.BOTH), True: (PortOrder.BOTH,)}


@dataclass(frozen=True)
class ReplayedProgram:
    """A program with its replay; unless it is a `Lowered` nobody has verified it, and it does not leave the tool.

    Attributes
    ----------
    program
        The program.
    replay
        Replay of the program under the schedule's cost model.
    port_order
        Which messages keep the schedule's order at ports.
    """

    program: Program
    replay: Timeline
    port_order: PortOrder


@dataclass(frozen=True)
class Lowered(ReplayedProgram):
    """A program that its verifier accepts.

    Attributes
    ----------
    text
        Its XML.
    verdict
        Verdict of the verifier.
    """

    text: str
    verdict: ProgramVerdict


def lower_and_verify(schedule: Schedule, options: LoweringOptions, stopped: Over = never) -> Lowered:
    """Lower a schedule, verify the text, and replay it; see `lower_unverified`.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept.
    InvalidArtifact
        If the verifier rejects the text, or it does not read back as the program.
    """
    return verified(lower_unverified(schedule, options, stopped), schedule.collective, options.runtime)


def lower_unverified(
    schedule: Schedule, options: LoweringOptions, stopped: Over = never, *, reorders: bool = True
) -> ReplayedProgram:
    """Lower a schedule and replay the program.

    Where ports would let messages pass in another order than planned, or what is forwarded as it arrives would hold up what comes
    behind it, programs that enforce the order, without fused steps, are tried: the order is worth up to a quarter of the time, and
    takes no longer than the first program did. If the user wants an end, they are tried where that was soon done. Without `reorders` the
    options' own order is kept, for those who have another clock.

    A large schedule that is symmetric is lowered as a group schedule, rank by rank, if that keeps its promise, and is verified then.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept.
    """
    lowered = _lower_as_group(schedule, options)
    if lowered is not None:
        return lowered
    begun = time.monotonic()
    lowering = Lowering(schedule, options)
    kept = options.port_order
    program, timeline = _lower_once(lowering, schedule, kept, options)
    is_soon = time.monotonic() - begun <= _SOON_S
    for order in _PORT_ORDERS[schedule.collective.reduces] if reorders else ():
        slower = timeline.makespan_us > schedule.makespan_us * (1 + _REPLAY_TOLERANCE)
        if not slower or (stopped() and not is_soon):
            break
        if order is options.port_order:
            continue
        # Steps that wait for their turn cannot be fused, so there may be no room for them.
        try:
            other, replayed = _lower_once(lowering, schedule, order, options)
        except LoweringError:
            continue
        except Interrupted:
            break
        if replayed.makespan_us < timeline.makespan_us:
            program, timeline, kept = other, replayed, order
    return ReplayedProgram(program, timeline, kept)


class TrialPrograms:
    """The program of a schedule for trials, and others with a part of the threadblocks; what they have in common is made once.

    `whole` is the program with its replay; `instance` is for copies of it, None for ranks of large symmetric schedules, which are lowered
    one by one.

    Parameters
    ----------
    schedule, options
        As for `lower_unverified`; the options' order at ports is kept.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept.
    """

    def __init__(self, schedule: Schedule, options: LoweringOptions) -> None:
        self._schedule, self._options = schedule, options
        self._lowering: Lowering | None = None
        self.instance: OneInstance | None = None
        whole: ReplayedProgram | None = _lower_as_group(schedule, options)
        if whole is None:
            self._lowering = Lowering(schedule, options)
            program, timeline = _lower_once(self._lowering, schedule, options.port_order, options)
            whole = ReplayedProgram(program, timeline, options.port_order)
            self.instance = self._lowering.one_instance(program)
        self.whole = whole

    def narrower(self, parts: int) -> OneInstance | None:
        """Program with one of so many equal parts of the threadblocks that a GPU may have; None if that is too little for it.

        Ranks of large symmetric schedules, which are lowered one by one, have none.
        """
        if self._lowering is None:
            return None
        return _program_in(_room_of(parts, self._options), self._lowering, self._schedule, self._options)

    @property
    def balanced(self) -> BalancedPrograms:
        """Programs with threadblocks in proportion to their work."""
        return BalancedPrograms(self._schedule, self._options, self._lowering)


class BalancedPrograms:
    """Programs of a schedule with threadblocks in proportion to their work, for copies of them; what they have in common is made once.

    Parameters
    ----------
    schedule, options
        As for `TrialPrograms`.
    lowering
        Lowering of the schedule with these options, if there is one.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept.
    """

    def __init__(self, schedule: Schedule, options: LoweringOptions, lowering: Lowering | None = None) -> None:
        self._schedule, self._options = schedule, options
        self._lowering = lowering or Lowering(schedule, options)

    def of(self, parts: int) -> OneInstance | None:
        """Program with one of so many equal parts of the threadblocks that a GPU may have; None if all links have as many anyway, or there is no room."""
        room = replace(_room_of(parts, self._options), balanced=True)
        if not self._lowering.is_unbalanced(room):
            return None
        return _program_in(room, self._lowering, self._schedule, self._options)


def _room_of(parts: int, options: LoweringOptions) -> Room:
    return Room(max(1, (options.max_threadblocks or 1) // parts), parts)


def _program_in(room: Room, lowering: Lowering, schedule: Schedule, options: LoweringOptions) -> OneInstance | None:
    """Program for copies in some room; None if it is too little."""
    count_work("lowered", round(_REARRANGED * 2 * len(schedule.messages)))
    with suppress(LoweringError):
        return lowering.one_instance(lowering.program(options.port_order, room))
    return None


def _lower_as_group(schedule: Schedule, options: LoweringOptions) -> Lowered | None:
    """A large symmetric schedule, lowered rank by rank; None if it is small or not symmetric enough, or ranks do not fit together, or wait too long.

    Chunks of ranks that some image parts (of two nodes, at most) are copied together, which real memory takes its time for. Only where
    all ranks at once would take minutes is that the better choice.
    """
    carried = sum(len(message.chunks) for message in schedule.messages)
    group = as_group(schedule) if carried > _MANY_CHUNKS else None
    if group is None or len(group.roots) * _LEAST_IMAGES > schedule.topology.num_ranks:
        return None
    try:
        seams = group.seams if carried > _MOST_CHUNKS and schedule.topology.num_nodes > 1 else frozenset()
        patterns = lower_patterns(group, options, seams)
        if not has_images(group, patterns):
            return None
        lowered = _lower_by_ranks(group, options, patterns)
    except (LoweringError, InvalidArtifact):
        return None  # ranks that are lowered all at once know more of each other
    return lowered if lowered.replay.makespan_us <= schedule.makespan_us * (1 + _REPLAY_TOLERANCE) else None


def verified(found: ReplayedProgram, collective: Collective, runtime: Runtime) -> Lowered:
    """A program with its text, or InvalidArtifact if the verifier rejects that; itself, if it is verified already."""
    if isinstance(found, Lowered):
        return found
    program = found.program
    count_work("lowered", sum(len(block.steps) for gpu in program.gpus for block in gpu.threadblocks))
    text = emit_xml(program, runtime)
    verdict = verify_program(text, runtime, kind=collective.kind, root=collective.own_root)
    require_verdict("algorithm.xml", verdict.violations, verdict.unsupported)
    if parse_xml(text, "algorithm.xml", runtime) != program:
        raise ValueError("the emitted text does not read back as the program")
    return Lowered(program, found.replay, found.port_order, text, verdict)


def lower_group_and_verify(schedule: GroupSchedule, options: LoweringOptions) -> Lowered:
    """Lower a group schedule rank by rank, or whole if it is small and roles do not fit together; verify the text, and replay it.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept, or ranks that were lowered one by one would wait for each other for ever.
    InvalidArtifact
        If the verifier rejects the text for another reason.
    """
    try:
        return _lower_by_ranks(schedule, options, lower_patterns(schedule, options))
    except LoweringError:
        if len(schedule.roots) == 1 or schedule.num_messages > MOST_WHOLE:
            raise
        return lower_and_verify(schedule.expanded(), options)


def _lower_by_ranks(schedule: GroupSchedule, options: LoweringOptions, patterns: Patterns) -> Lowered:
    programs: list[Program] = []
    for rank, program in enumerate(lower_ranks(schedule, patterns, range(schedule.topology.num_ranks))):
        gpu = program.gpus[rank]
        # At once, as those that do not agree with the first ranks need not be waited for.
        require_agreement(gpu, {peer: programs[peer].gpus[peer] for peer in find_peers(gpu) if peer < rank}, options)
        programs.append(program)
    joined = join_ranks(programs)
    require_limits(joined, options.runtime)
    # Up to which size ranks do not stop is seen of all of them only.
    program, text, verdict = verified_where_safe(joined, options.runtime)
    made_for = schedule.chunk_bytes * joined.num_chunks_per_loop
    wanted = options.max_bytes or max(options.min_bytes, int(made_for / options.instances))
    rules = {violation.rule for violation in verdict.violations}
    if program.max_bytes < min(wanted, joined.max_bytes) or (rules and rules <= _NEVER_ENDS):
        raise LoweringError(
            "lowered one by one, ranks would wait for each other for ever; use taccl synth, which lowers all at once",
            runtime=options.runtime.name,
            limit="max_bytes",
        )
    require_verdict("algorithm.xml", verdict.violations, verdict.unsupported)
    slots = options.runtime.fifo_slots[program.protocol]
    size = schedule.chunk_bytes / options.instances
    replay = replay_program(program, schedule.topology, size, fifo_slots=slots)
    return Lowered(program, replay, patterns.options.port_order, text, verdict)


def verified_where_safe(
    program: Program, runtime: Runtime, verify: ProgramVerifier | None = None
) -> tuple[Program, str, ProgramVerdict]:
    """The program for sizes at which it does not stop, if there are any, its text, and what the verifier says of that."""
    verify = verify or verify_program
    text = emit_xml(program, runtime)
    verdict = verify(text, runtime, kind=program.kind)
    safe = verdict.facts.safe_max_bytes if verdict.facts is not None else None
    if {violation.rule for violation in verdict.violations} != {"max-bytes-unsafe"} or not safe:
        return program, text, verdict
    program = replace(program, max_bytes=safe)
    text = emit_xml(program, runtime)
    return program, text, verify(text, runtime, kind=program.kind)


def lower_one_rank(schedule: GroupSchedule, rank: int, options: LoweringOptions) -> tuple[Program, str]:
    """Program and text of one rank of a group schedule; the other ranks' GPUs are empty, and no rank looks at others' anyway.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept, or the rank's peers would not agree with it on what they send together.
    InvalidArtifact
        If the verifier rejects the text of a schedule that may have to be lowered whole.
    """
    if len(schedule.roots) > 1 and schedule.num_messages <= MOST_WHOLE:
        # Only lowering all ranks shows that they fit together.
        whole = lower_group_and_verify(schedule, options).program
        program = alone(whole, whole.gpus[rank])
        return program, emit_xml(program, options.runtime)
    patterns = lower_patterns(schedule, options)
    (program,) = lower_ranks(schedule, patterns, [rank])
    gpu, peers = program.gpus[rank], find_peers(program.gpus[rank])
    others = lower_ranks(schedule, patterns, peers)
    require_agreement(gpu, {peer: other.gpus[peer] for peer, other in zip(peers, others, strict=True)}, options)
    return program, emit_xml(program, options.runtime)


def lower_plan_and_verify(schedule: Schedule, options: PlanOptions) -> LoweredPlan:
    """Lower a schedule to a one-sided plan for MSCCL++ and verify its text.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept.
    InvalidArtifact
        If the verifier rejects the text.
    """
    lowered = lower_plan(schedule, options)
    collective = schedule.collective
    verdict = verify_plan(lowered.text, "plan.json", kind=collective.kind, root=collective.own_root)
    require_verdict("plan.json", verdict.violations, verdict.unsupported)
    return lowered


def lower_best(
    synthesis: Synthesis, options: LoweringOptions, over: Over = never, stopped: Over = never
) -> tuple[Synthesis, Lowered]:
    """Lower the best schedule, or a nearly as fast one whose XML keeps its promise better; the choice is the synthesis' schedule.

    Ranks that share a port cannot wait for each other in MSCCL, so there the XML may be slower than the schedule. The bound becomes
    one for messages that a step can carry. Where time is over, no other schedule is tried, unless a limit of the runtime cannot be
    kept.
    """
    # Lowering may use up the time in which the bound is found.
    bounded = bounded_by_messages(synthesis, MAX_COUNT, over)
    best, lowered, others = _first_lowered(synthesis, options, stopped)
    for schedule in others:
        promised_us = min(best.schedule.makespan_us * _KEPT_PROMISE, schedule.makespan_us)
        if lowered.replay.makespan_us <= promised_us or over():
            break
        with suppress(LoweringError, Interrupted):
            require_valid(schedule)
            candidate = lower_unverified(schedule, options, stopped)
            if candidate.replay.makespan_us < lowered.replay.makespan_us:
                lowered = verified(candidate, schedule.collective, options.runtime)
                best = chosen_instead(synthesis, schedule)
    return bounded if best is synthesis else bounded_by_messages(best, MAX_COUNT, over), lowered


def _first_lowered(
    synthesis: Synthesis, options: LoweringOptions, stopped: Over
) -> tuple[Synthesis, Lowered, Sequence[Schedule]]:
    """The answer, or the first of its runners-up that keeps the limits of the runtime, its program, and the runners-up after it."""
    runners_up = synthesis.runners_up
    try:
        return synthesis, lower_and_verify(synthesis.schedule, options, stopped), runners_up
    except LoweringError:
        for place, schedule in enumerate(runners_up):
            with suppress(LoweringError):
                require_valid(schedule)
                lowered = lower_and_verify(schedule, options, stopped)
                return chosen_instead(synthesis, schedule), lowered, runners_up[place + 1 :]
        raise


def _lower_once(
    lowering: Lowering, schedule: Schedule, order: PortOrder, options: LoweringOptions
) -> tuple[Program, Timeline]:
    steps = 2 * sum(map(len, sent_steps(folded(schedule)))) * options.instances  # a send and a receive each
    try:
        program = lowering.program(order)
    except LoweringError:
        count_work("lowered", _NO_ROOM * steps)
        raise
    count_work("lowered", steps)
    return program, replay_at(program, schedule, options.runtime, options.instances)


def replay_at(
    program: Program, schedule: Schedule, runtime: Runtime, instances: int, size_bytes: float | None = None
) -> Timeline:
    """Replay a program of a schedule, at the schedule's size unless another is given; every instance carries its part of each chunk."""
    slots, collective = runtime.fifo_slots[program.protocol], schedule.collective
    is_foldable = collective.kind is Kind.ALLREDUCE
    together = collective.num_chunks * instances // program.num_chunks_per_loop if is_foldable else 1
    chunk_bytes = schedule.chunk_bytes if size_bytes is None else collective.chunk_bytes(size_bytes)
    return replay_program(program, schedule.topology, chunk_bytes * together / instances, fifo_slots=slots)
