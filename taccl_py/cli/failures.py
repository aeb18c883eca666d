"""``taccl synth --single-failures``: a folder with a schedule for every single failure, and an index."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taccl_py.cli.delivery import deliver_answer, program_facts, runtime_facts, write_answer
from taccl_py.cli.options import echo_json, words_again
from taccl_py.cli.progress import watched
from taccl_py.errors import InputError, Interrupted, LimitReached
from taccl_py.jsonio import canonical_json, write_all
from taccl_py.portfolio.failure_index import INDEX, WHOLE, folder_names, written_before
from taccl_py.report.tables import print_table, record
from taccl_py.schedule.image import OF_NO_RANK
from taccl_py.topology.files import topology_to_json

if TYPE_CHECKING:
    from taccl_py.answer import Answer
    from taccl_py.api.failures import FailurePlan, ServedFailure
    from taccl_py.api.lowering import Choice
    from taccl_py.lowering.lower import LoweringOptions
    from taccl_py.pipeline.resolve import Request
    from taccl_py.solvers.limits import Over
    from taccl_py.topology.failures import Failure


# Files beside the schedule where a program is asked for.
_PROGRAM = ("algorithm.xml", "summary.json")


def synth_failures(
    request: Request,
    options: LoweringOptions,
    output: Path | None,
    values: dict[str, Any],
    note: str,
    *,
    as_json: bool,
) -> None:
    """Synthesize for every single failure of a machine, write and print.

    Raises
    ------
    TacclError
        See `FailurePlan`; LimitReached if no failure is served.
    """
    from taccl_py.api.failures import FailurePlan
    from taccl_py.pipeline.resolve import damaged_machine
    from taccl_py.report.failures import failures_record, failures_table

    if output is not None and (output.suffix in (".json", ".xml") or output.is_file()):
        raise InputError("--single-failures makes many files; name a directory with -o", path=str(output))
    topology, _ = damaged_machine(request)
    try:
        plan = FailurePlan.of(request, topology, values["single_failures"])
    except InputError as error:
        raise InputError(error.what, path="command line", field="--single-failures") from None
    work = _FailureFiles(plan, options, output, values, note)
    limits = request.options.limits
    try:
        with watched(limits.stop) as events:
            deadline = limits.deadline()
            lower = None if values["only_schedule"] else work.lower
            for each in plan.served(options.runtime, deadline, events, lower):
                work.write(each)
    except (KeyboardInterrupt, Interrupted):
        work.finish(failures_record(plan, work.served, work.folders, work.facts()))
        raise
    result = failures_record(plan, work.served, work.folders, work.facts())
    work.finish(result)
    if not work.served:
        raise LimitReached(f"no failure is served: {result['missing'][0]['reason']}")
    if as_json:
        echo_json(result)
    else:
        print_table(failures_table(result))
    for each in result["missing"]:
        click.echo(f"note: nothing serves {each['failure']}: {each['reason']}", err=True)
    if output is not None and not as_json:
        click.echo(f"wrote {output / INDEX} and {len(work.served)} folders that it names", err=True)


@dataclass
class _FailureFiles:
    """Files of a plan, failure by failure.

    Attributes
    ----------
    served
        Failures whose files are there.
    """

    plan: FailurePlan
    options: LoweringOptions
    output: Path | None
    values: dict[str, Any]
    note: str
    served: list[ServedFailure] = field(default_factory=list)
    _stale: dict[str, Any] = field(default_factory=dict)
    _written: dict[tuple[int, ...], str] = field(default_factory=dict)

    @cached_property
    def folders(self) -> dict[str, str]:
        """Name of the folder of each failure, by its words."""
        return folder_names(image.failure.what for each in self.plan.classes for image in each.images)

    def lower(
        self, answer: Answer, failure: Failure | None, over: Over, settled: Over
    ) -> tuple[Answer, Choice | None]:  # fmt: skip
        """Program of a schedule, for a failure or for the whole machine."""
        stop = self.plan.request.options.limits.stop
        folder = None if self.output is None or failure is None else self.output / self.folders[failure.what]
        delivered = deliver_answer(answer, self.options, self.values["instances"], over, settled, stop, folder)
        return delivered.answer, delivered.choice

    def write(self, each: ServedFailure) -> None:
        """Write the files of a failure."""
        if self.output is not None:
            self._write_into(self.output / self.folders[each.failure.what], each)
            if not self.served:  # the index of an earlier run, whose folders are overwritten from now on
                self._stale = dict(written_before(self.output))
                (self.output / INDEX).unlink(missing_ok=True)
        self.served.append(each)

    def _write_into(self, folder: Path, each: ServedFailure) -> None:
        # Messages of images carry the same chunks where data belongs to no rank, and else never again.
        written = self._written if self.plan.request.kind in OF_NO_RANK else None
        if each.choice is None:
            write_answer(folder / "schedule.json", each.answer, None, {}, written=written)
            for name in _PROGRAM:  # of an earlier run
                (folder / name).unlink(missing_ok=True)
            return
        lowered = each.choice.lowered
        facts = {"failure": each.failure.what, **record(each.answer, lowered, [])}
        facts |= {**program_facts(each.choice, self.options.runtime), **runtime_facts(each.answer, self.note)}
        write_answer(folder, each.answer, lowered, facts, written=written)

    def facts(self) -> dict[str, Any]:
        """Facts of all files."""
        return {
            "root": self.plan.request.root,
            "size_bytes": self.plan.request.size_bytes,
            "runtime": None if self.values["only_schedule"] else self.options.runtime.name,
            "command": words_again(),
        }

    def finish(self, result: dict[str, Any]) -> None:
        """Write the index, and take away folders of an earlier one that are not in it."""
        if self.output is None or not self.served:
            return
        whole = canonical_json(topology_to_json(self.plan.topology))
        write_all({self.output / WHOLE: whole, self.output / INDEX: canonical_json(result)})
        kept = {each["folder"] for each in result["failures"]}
        for old in self._stale.get("failures", []):
            name = old.get("folder", "") if isinstance(old, dict) else ""
            if isinstance(name, str) and name and Path(name).name == name and name not in kept:
                _take_away(self.output / name)


def _take_away(folder: Path) -> None:
    """Remove a folder of ours, unless something else was put there."""
    for name in ("schedule.json", *_PROGRAM):
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()
