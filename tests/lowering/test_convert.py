"""Files of other tools, converted, pass the verifier of the runtime and run to the right result."""

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from taccl_py.collective import Kind
from taccl_py.errors import InputError, InvalidArtifact, LoweringError
from taccl_py.execute.reader import read_plan
from taccl_py.lowering.buffers import CallPlacement
from taccl_py.lowering.foreign import LocalCopy, read_foreign, runs_of
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.conversion import convert_and_verify
from taccl_py.pipeline.deliver import lower_and_verify
from taccl_py.runtimes import EXECUTOR, LEGACY, RCCL, RUNTIMES
from tests.execute.running import outcomes
from tests.lowering.cases import random_schedule
from tests.lowering.foreign_files import (
    copying_allgather,
    copying_reducescatter,
    dangling_nop,
    legacy,
    scratch_behind_the_output,
)
from tests.verify.msccl.files import RIGHT_FILES, add, direct_gather, make_file, ring_allgather, ring_allreduce, step
from tests.verify.msccl.test_broken_files import both_send_first

every_runtime = pytest.mark.parametrize("runtime", RUNTIMES.values(), ids=list(RUNTIMES))


def converted(text, runtime=EXECUTOR, **how):
    """What a file becomes, after it has run to the right result wherever it says that it is for."""
    found = convert_and_verify(text, "old.xml", runtime, **how)
    plan = read_plan(found.text, "new.xml", kind=found.program.kind)
    for shuffled in (False, True):
        wrong = [
            outcome.first_wrong for outcome in outcomes(plan, runtime=runtime, shuffled=shuffled) if outcome.num_wrong
        ]
        assert wrong == []
    return found


def places(found):
    return (found.program.in_place, found.program.out_of_place)


@pytest.mark.parametrize("n", [2, 4])
def test_copies_become_steps_for_which_others_wait_so_that_the_file_is_right_out_of_place_too(n):
    found = converted(copying_allgather(n))
    assert places(found) == (True, True)
    for gpu in found.program.gpus:
        copy = gpu.threadblocks[2].steps
        assert [(step.op, step.dst.offset, step.has_dependent) for step in copy] == [("cpy", gpu.rank, True)]
        assert gpu.threadblocks[0].steps[0].depends_on == (2, 0)
    assert found.notes[0] == "filled in: outofplace=0, minBytes=0, maxBytes=134217728"
    assert f"{n} copy elements" in found.notes[1]
    # What the legacy runtime took for its end: 2^27 itself was outside.
    assert found.program.max_bytes == (1 << 27) - 1


def test_a_file_that_stays_in_place_needs_no_copies():
    found = converted(copying_allgather(), placement=CallPlacement.IN_PLACE)
    assert places(found) == (True, False)
    assert {len(gpu.threadblocks) for gpu in found.program.gpus} == {2}


@pytest.mark.parametrize("n", [2, 3, 4])
@every_runtime
def test_rrc_may_mean_adding_to_its_destination(n, runtime):
    """As the runtimes read it every arrival but the last is lost out of place, so the other meaning is tried."""
    found = converted(copying_reducescatter(n), runtime)
    assert found.program.kind is Kind.REDUCESCATTER
    assert ("rrc adds to what lies at its destination, as TACCL means it" in found.notes) == (
        n > 2 and runtime is not LEGACY
    )


@every_runtime
def test_scratch_behind_the_output_becomes_scratch(runtime):
    found = converted(scratch_behind_the_output(), runtime)
    assert [gpu.scratch_chunks for gpu in found.program.gpus] == [0, 1, 0]
    assert {step.dst.buffer for tb in found.program.gpus[1].threadblocks for step in tb.steps if step.op == "r"} == {
        "o",
        "s",
    }


@every_runtime
def test_a_nop_before_a_step_that_waits_for_nothing_is_put_right(runtime):
    found = converted(dangling_nop(), runtime)
    steps = found.program.gpus[0].threadblocks[1].steps
    assert [(step.op, step.depends_on) for step in steps] == [("cpy", None), ("re", (0, 1))]


@every_runtime
@pytest.mark.parametrize("name", RIGHT_FILES)
def test_right_files_stay_right_for_every_runtime(name, runtime):
    file = RIGHT_FILES[name]()
    found = converted(file.text(), runtime)
    if runtime is RCCL:
        ops = {step.op for gpu in found.program.gpus for tb in gpu.threadblocks for step in tb.steps}
        assert ops <= {"s", "r", "cpy", "re", "nop"}
    declared = (bool(file.attributes["inplace"]), bool(file.attributes["outofplace"]))
    if runtime is not LEGACY:
        assert places(found) == declared
    elif found.program.kind is not Kind.ALLTOALL:
        assert places(found) == (declared[0], not declared[0])


def test_a_fused_sum_is_taken_apart_without_storing_over_what_it_adds():
    """Rank 1 of the reduce adds i0 to what comes and stores nothing: it needs two cells of scratch."""
    found = converted(RIGHT_FILES["chain_reduce"]().text(), RCCL)
    assert [gpu.scratch_chunks for gpu in found.program.gpus] == [2, 0, 2]
    steps = found.program.gpus[2].threadblocks[0].steps
    assert [(step.op, step.src.buffer, step.dst.buffer) for step in steps[:2]] == [("r", "i", "s"), ("re", "i", "s")]


def test_steps_that_are_numbered_otherwise_and_attributes_that_are_missing_are_filled_in():
    file = legacy(ring_allgather(), inplace=1)
    text = file.text().replace('hasdep="0"', "").replace(' depid="-1" deps="-1"', "").replace('s="0"', 's="10"')
    text = text.replace(' name="test"', "").replace(' nchannels="2"', "").replace(' coll="allgather"', "")
    with pytest.raises(InputError, match="algo coll: is missing"):
        converted(text)
    found = converted(text, kind=Kind.ALLGATHER)
    assert found.program.name == "old"
    assert found.program.num_channels == 1


def test_xml_that_the_runtimes_readers_refuse_is_written_as_they_want_it():
    text = '<?xml version="1.0"?>\n' + ring_allgather().text().replace("<tb ", "<tb\n\t").replace(
        "    <step", "\t<step"
    )
    assert converted(text).text == converted(ring_allgather().text()).text


def test_local_threadblocks_without_a_channel_get_one():
    file = legacy(ring_allgather())
    for gpu in file.gpus:
        gpu.blocks[1].attributes["chan"] = -1
    assert {gpu.threadblocks[1].channel for gpu in converted(file.text()).program.gpus} == {0}


def test_the_largest_size_is_lowered_to_where_the_program_stops():
    """Four chunks in one step need slots for four when fewer than two fit into a message."""
    found = converted(both_send_first(1, 4, proto="Simple", maxBytes=0).text())
    assert found.program.max_bytes == 8 * (2097152 // 2)
    assert "maxBytes is now 8388608" in found.notes[0]


def test_no_limit_becomes_the_largest_that_the_legacy_runtime_can_count():
    file = ring_allreduce()
    file.attributes["maxBytes"] = 0
    assert converted(file.text(), LEGACY).program.max_bytes == (1 << 31) - 1
    assert converted(file.text(), EXECUTOR).program.max_bytes == (1 << 63) - 1


def test_custom_collectives_are_counted_anew():
    for text, runtime, chunks in (
        (direct_gather(3).text(), LEGACY, 6),
        (converted(direct_gather(3).text(), LEGACY).text, EXECUTOR, 2),
    ):
        found = converted(text, runtime, kind=Kind.GATHER)
        assert (found.program.kind, found.program.num_chunks_per_loop) == (Kind.GATHER, chunks)


def test_what_cannot_be_put_right_is_refused():
    file = ring_allgather()
    file.step(0, 1, 0)["dstoff"] = 2
    with pytest.raises(InvalidArtifact, match=r"old\.xml, converted: .*wrong"):
        converted(file.text())
    file = ring_allgather()
    file.step(0, 1, 0).update(depid=0, deps=9)
    with pytest.raises(InputError, match=r"old\.xml: threadblock 1 of rank 0 waits for step 9 of threadblock 0"):
        converted(file.text())
    long = make_file("allgather", 2, 2, (1, 2, 0))
    for rank in range(2):
        steps = [step("s"), *[step("rcs", dst=f"o{1 - rank}")] * 40, step("r", dst=f"o{1 - rank}")]
        add(long, rank, 1 - rank, 1 - rank, steps)
    with pytest.raises(
        LoweringError, match=r"old\.xml: .*82, but RCCL allows 64; use fewer .* in the tool that wrote it$"
    ):
        converted(long.text(), RCCL)


def test_an_asked_collective_that_is_another_one_is_refused():
    with pytest.raises(InputError, match="alltoall was asked for"):
        converted(ring_allgather().text(), kind=Kind.ALLTOALL)


def test_neighbouring_copies_are_joined():
    copies = [LocalCopy(0, 4), LocalCopy(2, 6), LocalCopy(1, 5), LocalCopy(3, 0), LocalCopy(4, 1)]
    assert runs_of(copies, 71) == [(LocalCopy(0, 4), 3), (LocalCopy(3, 0), 2)]
    assert [count for _, count in runs_of(copies, 2)] == [2, 1, 2]


@pytest.mark.parametrize("missing", ["id", "i_off"])
def test_what_cannot_be_guessed_is_named_with_its_line(missing):
    text = copying_allgather().replace(' id="0" i_chunks', " i_chunks" if missing == "id" else ' id="0" i_chunks', 1)
    text = text if missing == "id" else text.replace(' i_off="0"', "", 1)
    with pytest.raises(InputError, match=r"old.xml: line [23], (gpu id|copy i_off): is missing; add it"):
        read_foreign(text, "old.xml")


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 9999), kind=st.sampled_from(Kind), source=st.sampled_from([EXECUTOR, RCCL]), data=st.data())
def test_what_we_make_for_one_runtime_can_be_converted_for_another(seed, kind, source, data):
    try:
        lowered = lower_and_verify(random_schedule(seed, kind), LoweringOptions(source))
        converted(lowered.text, data.draw(st.sampled_from(list(RUNTIMES.values()))), kind=kind)
    except LoweringError:
        reject()
