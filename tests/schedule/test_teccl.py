"""Schedules in TE-CCL's words become schedules that move everything, and programs that the verifier accepts."""

import json

import pytest

from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.pipeline.conversion import convert_and_verify
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
    assert "an epoch of 2 us for a chunk of TE-CCL, which counts as 1 MB" in schedule.topology.source


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


def alltoall(gpus=(0, 1, 2), chunks=1, *, ways=None, key="8-Chunk paths"):
    """An AllToAll on a full mesh as TE-CCL writes it; of the chunks between the first two a quarter goes round by the third."""
    found = {}
    for src in gpus:
        for place, dst in enumerate(gpus):
            for part in range(chunks if src != dst else 0):
                number = place + part * len(gpus)  # chunks are numbered by destination
                direct = [[[part, f"{src}->{dst} with volume 1.0 in epoch {part}"]]]
                if (src, dst) == gpus[:2]:
                    direct = [
                        [[part, f"{src}->{dst} with volume 0.75 in epoch {part} via switches 9"]],
                        [
                            [part, f"{src}->{gpus[2]} with volume 0.25 in epoch {part}"],
                            [part + 1, f"{gpus[2]}->{dst} with volume 0.24999999999999994 in epoch {part + 1}"],
                        ],
                    ]
                found[f"Demand at {dst} for chunk {number} from {src} met by epoch {part + 1}"] = direct
    return json.dumps({"1-Epoch_Duration": 2e-6, "7-Flows": [], key: ways if ways is not None else found})


@pytest.mark.parametrize(
    ("gpus", "chunks", "key"), [((0, 1, 2), 1, "8-Chunk paths"), ((3, 5, 8, 9), 2, "7-chunk paths")]
)
def test_an_alltoall_is_read_by_the_paths_of_its_pieces(gpus, chunks, key):
    schedule = read_teccl_schedule(alltoall(gpus, chunks, key=key), "s.json")
    assert verify_schedule(schedule) == ()
    assert (schedule.collective.kind, schedule.collective.num_ranks) == (Kind.ALLTOALL, len(gpus))
    assert schedule.collective.chunks_per_rank == 4 * chunks  # quarters are the smallest parts
    links = schedule.topology.links
    last = 4 * chunks + 3  # piece of what goes from rank 0 to 1
    ways = [
        {(links[m.link].src, links[m.link].dst) for m in schedule.messages if last - i in m.chunks}
        for i in (0, 1, 2, 3)
    ]
    assert ways == [{(0, 2), (2, 1)}] + [{(0, 1)}] * 3
    # A whole chunk occupies a link for an epoch of 2 us; the quarter goes before or after one on two links.
    assert 2.0 * chunks + 0.5 - 1e-9 <= schedule.makespan_us <= 2.0 * chunks + 2 * 0.5 + 1e-9


@pytest.mark.parametrize("runtime", ["executor", "rccl", "legacy"])
def test_an_alltoall_is_converted_to_a_program(runtime):
    found = convert_and_verify(alltoall(), "s.json", RUNTIMES[runtime])
    assert (found.program.kind, found.verdict.violations) == (Kind.ALLTOALL, ())


def only(ways):
    both = {"Demand at 0 for chunk 0 from 1 met by epoch 0": [[[0, "1->0 with volume 1.0 in epoch 0"]]]}
    return alltoall(ways=both | {"Demand at 1 for chunk 1 from 0 met by epoch 0": ways})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (alltoall(ways={"chunk 0": []}), "is no name as"),
        (alltoall(ways={}), "is no AllToAll"),
        (
            alltoall(
                ways={"Demand at 0 for chunk 0 from 1 met by epoch 0": [[[0, "1->0 with volume 1.0 in epoch 0"]]]}
            ),
            "is no AllToAll",
        ),
        (only([[[0, "0->1 with volume 0.5 in epoch 0"]]]), "do not carry one chunk"),
        (only([[[0, "0->2 with volume 1.0 in epoch 0"]]]), "does not lead from 0 to 1"),
        (only([[[1, "0->2 with volume 1.0 in epoch 1"], [0, "2->1 with volume 1.0 in epoch 0"]]]), "epoch by epoch"),
        (
            only([[[0, "0->2 with volume 1.0 in epoch 0"], [1, "2->1 with volume 1.0 in epoch 1"]]]),
            "GPU 2 passes chunks on",
        ),
        (only([[[0, "0->1 with volume 0.5 in epoch 0"], [1, "1->1 with volume 0.2 in epoch 1"]]]), "begins with 0.5"),
        (only([[[0, "0->1 with volume 0.123457 in epoch 0"]]]), "no whole number of up to 64"),
        (only([[]]), "does not lead"),
        (only([[[0, "0->1"]]]), "has a hop that is not as"),
        (only(["x"]), "has a hop that is not as"),
    ],
)
def test_what_is_no_alltoall_is_refused(text, words):
    with pytest.raises(InputError, match=words) as error:
        read_teccl_schedule(text, "s.json")
    assert "s.json" in str(error.value)
