"""Lengths of chunks for which a plan is executed."""

import json

from taccl_py.verify.msccl.findings import Findings
from taccl_py.verify.mscclpp.grammar import read_plan_text
from taccl_py.verify.mscclpp.sizings import find_sizes
from taccl_py.verify.mscclpp.spans import Sizing
from tests.verify.mscclpp.plans import two_allgather


def test_a_plan_that_cuts_nothing_is_executed_with_whole_chunks():
    findings = Findings()
    sizes = find_sizes(read_plan_text(json.dumps(two_allgather()), "plan.json"), findings)
    assert sizes.declared == (Sizing(1),)
    assert sizes.beyond is None
    assert not findings.broken
