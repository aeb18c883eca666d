"""The text of a target, from a comparison to what is written, and back."""

from __future__ import annotations

from dataclasses import dataclass

from taccl_py.baselines.compare import BaselineComparison
from taccl_py.baselines.tuner.nccl_csv import read_nccl, write_nccl
from taccl_py.baselines.tuner.ncclx import aligned, read_ncclx, write_csv, write_json
from taccl_py.baselines.tuner.open_mpi import read_open_mpi, write_open_mpi
from taccl_py.baselines.tuner.rules import OF_NCCL, TunerRule, TunerTarget, ours_takes_over, rules_of
from taccl_py.baselines.tuner.ucc import read_ucc, write_ucc
from taccl_py.units import SizeRange


@dataclass(frozen=True)
class TunerFile:
    """A file for a library's tuner.

    Attributes
    ----------
    target
        The library.
    rules
        What it says.
    ours
        Where our files are faster than NCCL, which its files can say in comments only; empty for MPI's libraries, which load none.
    text
        The file.
    """

    target: TunerTarget
    rules: tuple[TunerRule, ...]
    ours: tuple[SizeRange, ...]
    text: str


def tuner_file(comparison: BaselineComparison, target: TunerTarget, name: str) -> TunerFile:
    """File of a comparison, which reads back as its rules.

    Parameters
    ----------
    comparison
        Times at every size.
    target
        The library.
    name
        Name of the file: for NCCLX ``.json`` makes it JSON.

    Raises
    ------
    LoweringError
        If the library has no such choice, or cannot say it.
    """
    rules = rules_of(comparison, target)
    ours = ours_takes_over(comparison) if target in OF_NCCL else ()
    if target is TunerTarget.NCCLX:
        rules = aligned(rules)
    text = _write(rules, ours, target, name)
    if read_tuner(text, target, name) != rules:
        raise ValueError("the tuner file does not read back as its rules")
    return TunerFile(target, rules, ours, text)


def _write(rules: tuple[TunerRule, ...], ours: tuple[SizeRange, ...], target: TunerTarget, name: str) -> str:
    match target:
        case TunerTarget.NCCL:
            return write_nccl(rules, ours)
        case TunerTarget.NCCLX:
            return write_json(rules) if name.endswith(".json") else write_csv(rules, ours)
        case TunerTarget.OPEN_MPI:
            return write_open_mpi(rules)
        case TunerTarget.UCC:
            return write_ucc(rules)


def read_tuner(text: str, target: TunerTarget, path: str) -> tuple[TunerRule, ...]:
    """Rules of a target's file.

    Raises
    ------
    InputError
        If the file is wrong.
    """
    readers = {
        TunerTarget.NCCL: read_nccl, TunerTarget.NCCLX: read_ncclx, TunerTarget.OPEN_MPI: read_open_mpi, TunerTarget.UCC: read_ucc,
    }  # fmt: skip
    return readers[target](text, path)
