"""The record of a profile: a line of JSON for every experiment as soon as it has run, so that a stop or a kill loses one at most."""

from __future__ import annotations

import json
from pathlib import Path

from taccl_py.errors import InputError
from taccl_py.jsonio import Fields, append_text, parse_json, read_text, write_atomically
from taccl_py.measure.experiment import Experiment, MeasuredFlow
from taccl_py.measure.samples import Sample

RECORD_FORMAT = "taccl-profile-record"
_VERSION = 1


def samples_of_record(text: str, path: str) -> tuple[Sample, ...]:
    """Samples of a record's text; flows that ran at the same time have one label.

    Parameters
    ----------
    text
        Content of the file.
    path
        Its name, for error messages.

    Raises
    ------
    InputError
        If the text is no record, or a line of it is wrong.
    """
    lines = _whole_lines(text)
    if len(lines) < 2:
        raise InputError("has no experiment; let the profile run longer", path=path)
    header = Fields(parse_json(lines[0], path), path)
    header.header(RECORD_FORMAT, _VERSION)
    num_ranks = header.integer("num_ranks", least=2)
    samples: list[Sample] = []
    for number, line in enumerate(lines[1:], 2):
        experiment, times = _read_line(line, f"{path}, line {number}", num_ranks)
        label = f"experiment {number - 1}" if len(times) > 1 else ""
        for flow, time_us in zip(experiment.flows, times, strict=True):
            samples.append(
                Sample(flow.src, flow.dst, experiment.size_bytes, time_us, experiment.messages, together=label)
            )
    return tuple(samples)


def _whole_lines(text: str) -> list[str]:
    """Lines of a record, without a last one that the program was killed while it wrote."""
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _read_line(line: str, path: str, num_ranks: int) -> tuple[Experiment, tuple[float, ...]]:
    fields = Fields(parse_json(line, path), path)
    ends, times = fields.integers("ranks", least=0), fields.numbers("times_us")
    size_bytes, messages = fields.integer("size_bytes", least=0), fields.integer("messages", least=1)
    fields.finish()
    if len(ends) != 2 * len(times) or not times or max(ends) >= num_ranks:
        fields.fail("ranks", f"found {len(ends)} ranks below {num_ranks} and {len(times)} times; two a time are needed")
    flows = tuple(MeasuredFlow(src, dst) for src, dst in zip(ends[::2], ends[1::2], strict=True))
    return Experiment(flows, size_bytes, messages), tuple(times)


class Record:
    """Results in a file, added to as they come.

    Parameters
    ----------
    path
        The file; it is made if it is not there, and begun again if it is empty or stopped in its first line.
    machine
        Name of the machine, which a record that is continued must have.
    num_ranks
        Its ranks, the same.

    Raises
    ------
    InputError
        If the file is no record, or of another machine, or cannot be written.
    """

    def __init__(self, path: Path, machine: str, num_ranks: int) -> None:
        self._path = path
        self.known: dict[Experiment, tuple[float, ...]] = {}
        header = {"format": RECORD_FORMAT, "version": _VERSION, "machine": machine, "num_ranks": num_ranks}
        text, first = read_text(path) if path.exists() else "", json.dumps(header) + "\n"
        lines = _whole_lines(text)
        if not lines and first.startswith(text):
            write_atomically(path, first)
            return
        if not lines or parse_json(lines[0], str(path)) != header:
            raise InputError(f"is not a record of {machine} with {num_ranks} ranks; name another file", path=str(path))
        if not text.endswith("\n"):
            write_atomically(path, "".join(lines))
        for number, line in enumerate(lines[1:], 2):
            experiment, times = _read_line(line, f"{path}, line {number}", num_ranks)
            self.known[experiment] = times

    def keep(self, experiment: Experiment, times: tuple[float, ...]) -> None:
        """Add a result.

        Parameters
        ----------
        experiment
            Experiment that ran.
        times
            Microseconds of every flow.

        Raises
        ------
        InputError
            If the file cannot be written.
        """
        ends = [rank for flow in experiment.flows for rank in (flow.src, flow.dst)]
        value = {
            "size_bytes": experiment.size_bytes, "messages": experiment.messages, "ranks": ends, "times_us": list(times),
        }  # fmt: skip
        append_text(self._path, json.dumps(value) + "\n")
