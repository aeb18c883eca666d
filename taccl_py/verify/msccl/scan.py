"""Scan of a directory: conditions of the modern runtimes on every file before they load any of them.

They read the first element of each file, whatever its name, and take from it what decides which calls the file is for
(``mscclGetAlgoMetaFromXmlFile`` in ``src/misc/msccl/msccl_parser.cc``). The first file of which that fails ends the scan, and
nobody is told.
"""

from __future__ import annotations

from taccl_py.runtimes import Runtime
from taccl_py.verify.msccl.findings import Findings, quoted
from taccl_py.verify.msccl.text import read_first

_ATTRIBUTES = ("nchannels", "nchunksperloop", "ngpus", "coll", "inplace", "outofplace", "minBytes", "maxBytes")
_NEVER_SELECTED = ("send", "recv", "alltoallv")  # they are known, and no call is answered with them
_HARMLESS = ("attribute-limit", "value-length")  # the tokenizer goes on


def find_scan_fault(text: str, runtime: Runtime) -> str | None:
    """Reason why the scan ends at a file, with the remedy; None for a file after which it goes on."""
    findings = Findings()
    first = read_first(text, findings)
    for violation in findings.violations():
        if violation.rule not in _HARMLESS:
            return violation.what
    attributes = {} if first is None else first.attributes
    for name in _ATTRIBUTES:
        if name not in attributes:
            return f"attribute {name!r} is missing in its first element; add it"
    known = sorted(runtime.collectives.values())
    if attributes["coll"] not in (*known, *_NEVER_SELECTED):
        return f"coll={quoted(attributes['coll'])} is no collective that it knows; use one of: {' '.join(known)}"
    return None
