"""Programs of demands on data: right ones, broken ones, and those of another demand."""

import json

import pytest

from taccl_py.demand import DataDemand
from taccl_py.errors import InputError, InvalidArtifact
from taccl_py.execute.demand_programs import read_demand_program, run_demand_program
from taccl_py.lowering.mscclpp.demand import lower_demand_plan
from taccl_py.synthesis.demands import solve_demand
from tests.demand.cases import MIXED, QUICK, demand_of, full

# A copy of two chunks of 8 elements from rank 0 to 1, and behind it the sum of one each of ranks 0 and 2.
CHUNKS = [{"bytes": 64, "holds": [0], "wants": [1]}, {"bytes": 32, "adds": [[0], [2]], "wants": [1]}]
DEMAND = demand_of(3, CHUNKS, "float32")


def step(kind, source, target, count, into="o"):
    places = f'srcbuf="i" srcoff="{source}" dstbuf="{into}" dstoff="{target}"'
    return f'<step s="0" type="{kind}" {places} cnt="{count}" depid="-1" deps="-1" hasdep="0"/>'


TEXT = f"""<algo name="x" proto="LL" nchannels="1" nchunksperloop="3" ngpus="3" coll="custom" inplace="0">
<gpu id="0" i_chunks="3" o_chunks="0" s_chunks="0">
<tb id="0" send="1" recv="-1" chan="0">{step("s", 0, 0, 2)}</tb>
<tb id="1" send="2" recv="-1" chan="0">{step("s", 2, 0, 1)}</tb></gpu>
<gpu id="1" i_chunks="0" o_chunks="3" s_chunks="0">
<tb id="0" send="-1" recv="0" chan="0">{step("r", 0, 0, 2)}</tb>
<tb id="1" send="-1" recv="2" chan="0">{step("r", 0, 2, 1)}</tb></gpu>
<gpu id="2" i_chunks="3" o_chunks="0" s_chunks="0">
<tb id="0" send="1" recv="0" chan="0">{step("rrs", 0, 2, 1)}</tb></gpu>
</algo>"""


def plan_text(demand=DEMAND, ranks=3):
    return lower_demand_plan(solve_demand(full(ranks), demand, QUICK).schedule).text


def run_text(text, demand=DEMAND, **how):
    return run_demand_program(read_demand_program(text, "program", demand), demand, **how)


@pytest.mark.parametrize("make", [lambda: TEXT, plan_text])
def test_right_programs_have_no_wrong_element(make):
    for seed in range(3):
        found = run_text(make(), repeats=2, seed=seed, shuffled=bool(seed)).comparison
        assert (found.num_wrong, found.first) == (0, None)


def test_large_chunks_go_in_slices():
    # A payload of LL is much less than a chunk of 4 MB.
    chunks = [{**chunk, "bytes": chunk["bytes"] << 17} for chunk in CHUNKS]
    assert run_text(TEXT, demand_of(3, chunks, "float32")).comparison.num_wrong == 0


@pytest.mark.parametrize(
    ("right", "wrong", "num_wrong", "words"),
    [
        # The sum gets another chunk of rank 0.
        (step("s", 2, 0, 1), step("s", 1, 0, 1), 8, "rank 1, chunk 2 of the output, offset 0: found "),
        # Rank 2 passes on what it gets, without its own summand.
        (step("rrs", 0, 2, 1), step("rcs", 0, 0, 1, "s"), 8, "chunk 2 of the output"),
        # What rank 0 has sent it writes over.
        (
            step("s", 0, 0, 2), step("s", 0, 0, 2) + step("cpy", 2, 1, 1, "i"),
            8, "rank 0, chunk 1 of the input (which must stay as it was), offset 0",
        ),
    ],
)  # fmt: skip
def test_wrong_elements_are_counted_and_the_first_one_is_told(right, wrong, num_wrong, words):
    assert TEXT.count(right) == 1
    text = TEXT.replace(right, wrong).replace('id="2" i_chunks="3" o_chunks="0" s_chunks="0"', 'id="2" s_chunks="1"')
    found = run_text(text).comparison
    assert found.num_wrong == num_wrong
    assert words in str(found.first)


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        # The file counts three chunks of each input; that of rank 2 has one.
        (step("rrs", 0, 2, 1), step("rrs", 1, 2, 1), "uses chunks 1..1 of the input, which has 1"),
        (step("r", 0, 2, 1), step("r", 0, 3, 1), "uses chunks 3..3 of the output, which has 3"),
        (step("s", 2, 0, 1), step("nop", 0, 0, 1), "waits for a message from rank 0"),
        (step("s", 0, 0, 2), step("s", 0, 0, 1), "sender and receiver must count alike"),
    ],
)
def test_programs_that_cannot_go_on_are_told(right, wrong, words):
    assert TEXT.count(right) == 1
    with pytest.raises(InvalidArtifact) as error:
        run_text(TEXT.replace(right, wrong))
    assert words in str(error.value.violations)


def changed_plan(change, demand=DEMAND, ranks=3):
    value = json.loads(plan_text(demand, ranks))
    change(value)
    return json.dumps(value)


def operations(value, rank, name):
    return [op for tb in value["gpus"][rank]["threadblocks"] for op in tb["ops"] if op["name"] == name]


def test_a_plan_that_puts_the_wrong_chunk_is_told():
    def change(value):
        operations(value, 0, "put")[1]["src_buff"][0]["index"] = 1

    found = run_text(changed_plan(change)).comparison
    assert found.num_wrong == 8
    assert str(found.first).startswith("rank 1, chunk 2 of the output, offset 0: found ")


def test_a_plan_must_not_touch_the_chunk_of_a_buffer_that_does_not_exist():
    # Rank 2 has no output, which counts as one chunk.
    def change(value):
        operations(value, 2, "re")[0]["dst_buff"][0] = {"type": "o", "index": 0, "size": 1}

    with pytest.raises(InvalidArtifact, match=r"uses chunks 0\.\.0 of the output, which has 0; keep inside"):
        run_text(changed_plan(change))


def test_a_plan_that_lacks_a_signal_stops():
    def change(value):
        operations(value, 2, "signal")[0]["name"] = "nop"

    with pytest.raises(InvalidArtifact, match="waits for a signal of gpu 2"):
        run_text(changed_plan(change))


@pytest.mark.parametrize(
    ("make", "demand", "words"),
    [
        (lambda: TEXT, demand_of(4, CHUNKS, "float32"), "is for 3 ranks, and the demand has 4"),
        (lambda: TEXT, demand_of(3, [{**CHUNKS[0], "bytes": 80}], "float32"), "has 80 bytes of float32, which that does not"),
        (lambda: TEXT, demand_of(3, [*CHUNKS, {"bytes": 16, "holds": [1], "wants": [0]}], "float32"), "input of rank 1 has 16"),
        (lambda: TEXT.replace('"custom"', '"allgather"'), DEMAND, "files for demands have 'custom'; leave --demand out"),
        (lambda: TEXT.replace('inplace="0"', 'inplace="1"'), DEMAND, "is for calls in place"),
        (lambda: '{"format": "taccl-schedule"}', DEMAND, "no MSCCL XML and no MSCCL++ plan"),
        (plan_text, demand_of(4, MIXED), "is for 3 ranks, and the demand has 4"),
        (plan_text, demand_of(3, CHUNKS[:1], "float32"), "which that does not divide"),
        (plan_text, demand_of(3, [*CHUNKS, {"bytes": 64, "holds": [2], "wants": [0]}], "float32"), "gpus.0.output_chunks"),
        (lambda: changed_plan(lambda v: v.update(collective="allreduce")), DEMAND, "plans for demands have 'custom'"),
        (lambda: changed_plan(lambda v: v.update(inplace=True)), DEMAND, "is for calls in place"),
    ],
)  # fmt: skip
def test_a_program_of_something_else_is_refused(make, demand, words):
    with pytest.raises(InputError) as error:
        run_text(make(), demand)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_not_promised_may_be_anything():
    # The first eight elements of rank 1's output are wanted by nobody.
    whole = demand_of(3, [{**CHUNKS[0], "wants": {"1": 0}}, CHUNKS[1]], "float32")
    less = DataDemand(
        whole.name, 3, whole.chunks[1:], whole.input_bytes, whole.output_bytes, whole.dtype,
    )  # fmt: skip
    text = TEXT.replace(step("s", 0, 0, 2), step("s", 1, 0, 2))
    assert run_text(text, less).comparison.num_wrong == 0
    assert run_text(text, whole).comparison.num_wrong == 16


def test_the_same_seed_gives_the_same_data():
    wrong = TEXT.replace(step("s", 2, 0, 1), step("s", 1, 0, 1))
    one, two, other = (str(run_text(wrong, seed=seed).comparison.first) for seed in (1, 1, 2))
    assert one == two != other
