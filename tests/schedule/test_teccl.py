"""Schedules in TE-CCL's words become schedules that gather everything, and programs that the verifier accepts."""

import json

import pytest

from taccl_py.conversion import convert_and_verify
from taccl_py.errors import InputError
from taccl_py.runtimes import RUNTIMES
from taccl_py.schedule.teccl import read_teccl_schedule
from taccl_py.verify.schedule import verify_schedule


def written(gpus=(0, 1, 2, 3), chunks=1, *, flows=None, demand=None):
    """A ring AllGather as TE-CCL writes it."""
    size = len(gpus)
    if flows is None:
        flows = [
            f"Chunk {part} from {gpus[(place - step) % size]} traveled over {gpus[place]}->{gpus[(place + 1) % size]} "
            f"in epoch {step * chunks + part}"
            for step in range(size - 1)
            for place in range(size)
            for part in range(chunks)
        ]
    if demand is None:
        parts = {f"Chunk {part}": 1e-6 for part in range(chunks)}
        demand = {f"GPU {a}": {f"GPU {b}": parts for b in gpus if a != b} for a in gpus}
    return json.dumps({"1-Epoch_Duration": 2e-6, "6-Demand_Met": demand, "7-Flows": flows})


@pytest.mark.parametrize(("gpus", "chunks"), [((0, 1, 2, 3), 1), ((1, 2, 4, 8), 2), ((0, 16), 3)])
def test_a_ring_gathers_everything_in_as_many_epochs(gpus, chunks):
    schedule = read_teccl_schedule(written(gpus, chunks), "s.json")
    assert verify_schedule(schedule) == ()
    assert schedule.collective.num_ranks == len(gpus)
    assert schedule.makespan_us == pytest.approx(2.0 * (len(gpus) - 1) * chunks)


@pytest.mark.parametrize("runtime", ["executor", "rccl", "legacy"])
def test_it_is_converted_to_a_program(runtime):
    found = convert_and_verify(written(chunks=2), "s.json", RUNTIMES[runtime])
    assert found.verdict.violations == ()
    assert found.text.startswith("<algo")


def test_ways_over_switches_and_flows_that_nobody_needs_are_read():
    lines = json.loads(written())["7-Flows"]
    text = written(flows=[f"{lines[0]} via switches 9", *lines[1:], "Chunk 0 from 0 traveled over 0->1 in epoch 7"])
    assert len(read_teccl_schedule(text, "s.json").messages) == len(lines)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (written(flows=["Chunk 0 from 0 traveled over 0->1 with volume 0.25 in epoch 0"]), "sends 0.25 of a chunk"),
        (
            written(flows=["Chunk 0 from 0 traveled over 2->1 in epoch 0"]),
            "GPU 2 sends chunk 0 from 0 in epoch 0 before",
        ),
        (written(flows=["Chunk 0 from 7 traveled over 0->1 in epoch 0"]), "no such chunk or GPU"),
        (written(flows=["a chunk"]), "is no line as"),
        (written(demand={"GPU 0": {"GPU 1": {"Chunk 1": 1}}, "GPU 1": {"GPU 0": {"Chunk 0": 1}}}), "is no AllGather"),
        (written(demand={"0": {}}), "GPU and a number"),
    ],
)
def test_what_is_no_allgather_of_whole_chunks_is_refused(text, words):
    with pytest.raises(InputError, match=words) as error:
        read_teccl_schedule(text, "s.json")
    assert "s.json" in str(error.value)
