"""Algorithm files of any tool, made ready for a runtime and verified."""

from __future__ import annotations

from dataclasses import dataclass, replace

from taccl_py.collective import Kind
from taccl_py.errors import InputError, InvalidArtifact, LoweringError, require_verdict
from taccl_py.lowering.convert import ConvertOptions, conversions, convert
from taccl_py.lowering.foreign import ForeignFile, read_foreign
from taccl_py.lowering.lower import CallPlacement, LoweringOptions
from taccl_py.lowering.program import Program, Protocol
from taccl_py.pipeline.deliver import lower_and_verify, verified_where_safe
from taccl_py.runtimes import Runtime
from taccl_py.schedule.teccl import is_teccl_schedule, read_teccl_schedule
from taccl_py.verify.msccl import ProgramVerdict, ProgramVerifier, verify_program

# Rules of the verifier that a program which never ends breaks.
_STOPS = ("fifo-deadlock", "deadlock")


@dataclass(frozen=True)
class Conversion:
    """A file of any tool, made ready for a runtime, that the verifier accepts.

    Attributes
    ----------
    program, text
        The program and its XML.
    verdict
        Verdict of the verifier.
    notes
        Changes, one clause each.
    runtime
        Runtime for which it is ready.
    """

    program: Program
    text: str
    verdict: ProgramVerdict
    notes: tuple[str, ...]
    runtime: Runtime


def convert_and_verify(
    text: str,
    path: str,
    runtime: Runtime,
    *,
    kind: Kind | None = None,
    placement: CallPlacement | None = None,
    origin: Runtime | None = None,
    verify: ProgramVerifier = verify_program,
) -> Conversion:
    """Make an algorithm file of any tool ready for a runtime; of several readings the first right one is taken.

    Parameters
    ----------
    text, path
        The file; of TE-CCL also its schedule of an AllGather of whole chunks or of an AllToAll.
    runtime
        Where it is to run.
    kind
        Collective of a file that does not say it.
    placement
        How the user's buffers may lie; None: as the file says, and both if it is a legacy file (which can only say one) and
        right for both.
    origin
        For which runtime it was written, if that is known.
    verify
        Verifier of the texts.

    Raises
    ------
    InputError
        If the file cannot be read.
    LoweringError
        If a limit of the runtime cannot be kept.
    InvalidArtifact
        If the verifier finds errors, whatever is tried.
    """
    if is_teccl_schedule(text):
        schedule = read_teccl_schedule(text, path)
        try:
            lowered = lower_and_verify(schedule, LoweringOptions(runtime, placement or CallPlacement.BOTH))
        except LoweringError as error:
            raise error.of_file(path) from None
        note = "the schedule of TE-CCL was lowered"
        return Conversion(lowered.program, lowered.text, lowered.verdict, (note,), runtime)
    file = read_foreign(text, path, kind=kind, origin=origin)
    refusals: dict[bool, InvalidArtifact | LoweringError] = {}
    for options in conversions(file, runtime, placement):
        try:
            return _convert_once(file, path, options, verify)
        except (InvalidArtifact, LoweringError) as error:
            # Errors with the placement that the file names say more than those with a guessed one.
            guessed = placement is None and options.in_place and options.out_of_place and file.legacy
            refusals.setdefault(guessed, error)
    refusal = refusals.get(False) or refusals.get(True) or ValueError("a file has no reading")
    raise refusal.of_file(path) if isinstance(refusal, LoweringError) else refusal


def _convert_once(file: ForeignFile, path: str, options: ConvertOptions, verify: ProgramVerifier) -> Conversion:
    try:
        program, notes = convert(file, options), [*file.notes]
    except InputError as error:
        raise InputError(error.what, path=path) from None
    max_bytes = program.max_bytes
    program, text, verdict = verified_where_safe(program, options.runtime, verify)
    if program.max_bytes != max_bytes:
        notes.append(f"maxBytes is now {program.max_bytes}, above which the program would stop")
    if verdict.violations:
        # Results are wrong where the program stops; that it does comes first.
        stops = sorted(verdict.violations, key=lambda one: one.rule not in _STOPS)
        raise InvalidArtifact(f"{path}, converted", stops)
    require_verdict(f"{path}, converted", (), verdict.unsupported)
    if verdict.facts is not None and verdict.facts.flags_early and program.kind not in (Kind.BROADCAST, Kind.REDUCE):
        # Simple is the one that is right over all networks, but for these two.
        found = _convert_once(
            replace(file, program=replace(file.program, protocol=Protocol.SIMPLE)), path, options, verify
        )
        early = "the protocol is now Simple: with LL this runtime may overwrite what is still being sent"
        return replace(found, notes=(*found.notes, early))
    notes += ["fused steps are taken apart, for with them the program would stop or be wrong"] * options.unfused
    notes += ["rrc adds to what lies at its destination, as TACCL means it"] * options.adds_to_target
    return Conversion(program, text, verdict, tuple(notes), options.runtime)
