"""The verifier of XML for demands against files that were broken on purpose."""

import re

import pytest

from taccl_py.lowering.demand_xml import lower_demand_program
from taccl_py.lowering.msccl_xml import emit_xml
from taccl_py.runtimes import EXECUTOR, LEGACY
from taccl_py.synthesis.demands import solve_demand
from taccl_py.verify.msccl import verify_program
from tests.demand.cases import MIXED, QUICK, demand_of, full

DEMAND = demand_of(4, MIXED)
TEXT = emit_xml(lower_demand_program(solve_demand(full(4), DEMAND, QUICK).schedule, LEGACY), LEGACY)
STEPS = [found.span() for found in re.finditer(r"<step [^>]*/>", TEXT)]


def rules(text, demand=DEMAND, runtime=LEGACY):
    return {one.rule for one in verify_program(text, runtime, demand=demand).violations}


def with_step(number, change):
    first, end = STEPS[number]
    return TEXT[:first] + change(TEXT[first:end]) + TEXT[end:]


def kind(number):
    first, end = STEPS[number]
    return re.search(r'type="(\w+)"', TEXT[first:end])[1]


def shifted(attribute):
    return lambda step: re.sub(
        rf'{attribute}="(\d+)"', lambda m: f'{attribute}="{int(m[1]) - 1 if int(m[1]) else 1}"', step
    )


def test_the_file_itself_is_accepted():
    assert rules(TEXT) == set()


@pytest.mark.parametrize("number", range(len(STEPS)))
def test_no_step_may_read_or_write_elsewhere(number):
    reads = {
        "s": ["srcoff"],
        "r": ["dstoff"],
        "cpy": ["srcoff", "dstoff"],
        "re": ["srcoff", "dstoff"],
        "rrc": ["srcoff", "dstoff"],
    }
    for attribute in reads.get(kind(number), []):
        assert rules(with_step(number, shifted(attribute))), (kind(number), attribute)


@pytest.mark.parametrize("number", range(len(STEPS)))
def test_no_sum_may_be_a_copy_and_no_copy_a_sum(number):
    other = {"cpy": "re", "re": "cpy", "rrc": "r"}.get(kind(number))
    if other is not None:
        assert rules(with_step(number, lambda step: step.replace(f'type="{kind(number)}"', f'type="{other}"')))


@pytest.mark.parametrize("number", range(len(STEPS)))
def test_no_wait_may_be_left_out(number):
    first, end = STEPS[number]
    if 'depid="-1"' not in TEXT[first:end]:
        assert rules(with_step(number, lambda step: re.sub(r'depid="\d+" deps="\d+"', 'depid="-1" deps="-1"', step)))


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ('coll="custom"', 'coll="alltoall"', "collective"),
        ('inplace="0"', 'inplace="1"', "placement"),
        ('nchunksperloop="100"', 'nchunksperloop="99"', "chunks-per-loop"),
        ('nchunksperloop="100"', 'nchunksperloop="64"', "chunks-per-loop"),
        ('minBytes="6400"', 'minBytes="6401"', "size-range"),
        ('maxBytes="6401"', 'maxBytes="6400"', "size-range"),
    ],
)
def test_a_file_for_something_else_is_refused(old, new, rule):
    assert old in TEXT
    assert rule in rules(TEXT.replace(old, new))


def test_a_file_for_another_demand_or_runtime_is_refused():
    other = demand_of(4, [*MIXED[:2], {**MIXED[2], "holds": [2]}])
    assert rules(TEXT, other)
    assert "rank-count" in rules(TEXT, demand_of(5, MIXED))
    assert "collective" in rules(TEXT, runtime=EXECUTOR)


def test_buffers_end_where_those_of_the_demand_do():
    # Rank 2 wants 100 units and holds 25, and the file counts both as 100.
    found = re.sub(r'(<gpu id="2".*?type="s" srcbuf="i" srcoff=")\d+', r"\g<1>50", TEXT, count=1, flags=re.S)
    assert found != TEXT
    assert rules(found) == {"outside-buffer"}
