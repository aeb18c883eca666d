"""Index of a catalogue: which case has which result, as one file in the order of the names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from taccl_py.campaign.store import RESULTS
from taccl_py.campaign.work import CaseOutcome
from taccl_py.jsonio import Fields, canonical_json, read_json, write_atomically

FORMAT, VERSION = "taccl-catalogue", 1
INDEX = "index.json"
# Of a result's record, what the index repeats, so that nobody has to open every result to find one.
FACTS = (
    "collective", "topology", "num_ranks", "num_nodes", "root", "size_bytes", "sketch", "engine", "status", "makespan_us",
    "replay_us", "bound_us", "gap", "algbw_gbps", "busbw_gbps", "steps", "threadblocks", "channels", "protocol",
    "runtime", "min_bytes", "max_bytes",
)  # fmt: skip


# Of a demand's.
_DEMAND_FACTS = (
    "demand", "collective", "topology", "num_ranks", "num_nodes", "size_bytes", "dtype", "engine", "status", "makespan_us", "replay_us",
    "bound_us", "gap", "algbw_gbps", "steps",
)  # fmt: skip


def _facts_of(record: dict[str, Any]) -> tuple[str, ...]:
    return _DEMAND_FACTS if "demand" in record else FACTS


def write_index(folder: Path, outcomes: Iterable[CaseOutcome]) -> dict[str, Any]:
    """Write the index of a catalogue and return it; the same results give the same bytes.

    Parameters
    ----------
    folder
        Of the catalogue.
    outcomes
        Cases with what became of them; those without a result are listed with the reason.

    Raises
    ------
    InputError
        If it cannot be written.
    """
    entries: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for outcome in outcomes:
        if outcome.kept is None:
            failed[outcome.case.name] = outcome.error
            continue
        facts = {fact: outcome.kept.record[fact] for fact in _facts_of(outcome.kept.record)}
        entries[outcome.case.name] = {"result": f"{RESULTS}/{outcome.key}", **facts}
    index = {
        "format": FORMAT,
        "version": VERSION,
        "results": dict(sorted(entries.items())),
        "failed": dict(sorted(failed.items())),
    }
    write_atomically(folder / INDEX, canonical_json(index))
    return index


def read_index(folder: Path) -> dict[str, dict[str, Any]]:
    """Results of a catalogue by name: the facts of the index.

    Raises
    ------
    InputError
        If there is no index, it is wrong, or no instance has a result.
    """
    path = folder / INDEX
    fields = Fields(read_json(path), str(path))
    fields.header(FORMAT, VERSION)
    results = fields.object("results")
    found = {}
    if not results.names():
        fields.fail("results", "is empty, no instance has a result; read why in its field failed and sweep again")
    for name in results.names():
        entry = results.object(name)
        place = folder / entry.text("result")
        if not (place / "schedule.json").is_file():
            results.fail(name, f"{place} is not there; run taccl sweep again")
        found[name] = dict(results.raw(name))
    return found
