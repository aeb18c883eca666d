import copy
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.errors import InputError
from taccl_py.schedule.files import read_schedule, write_schedule
from taccl_py.schedule.ir import Origin
from taccl_py.verify.schedule import verify_schedule
from tests.simulate.cases import relayed_scatter, ring_allgather, ring_allreduce, schedules

ORIGIN = Origin("milp", "highs", "", 7, "optimal", 1 / 3, "port 0 must carry 3 chunks")

RELAYED = """\
{
  "format": "taccl-schedule",
  "version": 1,
  "collective": {"kind": "scatter", "num_ranks": 3, "chunks_per_rank": 1, "root": 0},
  "chunk_bytes": 1000000.0,
  "topology": {
    "format": "taccl-topology",
    "version": 1,
    "name": "test",
    "source": "made up",
    "node_of": [0, 0, 0],
    "ports": [],
    "links": [
      {"from": 0, "to": 1, "alpha_us": 1.0, "beta_us_per_mb": 10.0},
      {"from": 1, "to": 0, "alpha_us": 1.0, "beta_us_per_mb": 10.0},
      {"from": 1, "to": 2, "alpha_us": 1.0, "beta_us_per_mb": 10.0},
      {"from": 2, "to": 1, "alpha_us": 1.0, "beta_us_per_mb": 10.0}
    ],
    "symmetry": [],
    "inside": "unknown"
  },
  "origin": null,
  "scratch": [
    [],
    [1, 2],
    []
  ],
  "messages": [
    {"link": 0, "chunks": [1, 2], "start_us": 0.0, "end_us": 21.0, "reduce": false},
    {"link": 2, "chunks": [2], "start_us": 21.0, "end_us": 32.0, "reduce": false}
  ]
}
"""


def test_a_file_is_written_with_one_line_for_each_message():
    assert write_schedule(relayed_scatter()) == RELAYED


def test_a_written_file_is_read_back():
    assert read_schedule(RELAYED, "relayed.json") == relayed_scatter()


@settings(max_examples=100)
@given(schedules(delays=True), st.sampled_from([None, ORIGIN, replace(ORIGIN, engine="auto", found_by="trees")]))
def test_reading_undoes_writing_to_the_last_bit(schedule, origin):
    schedule = replace(schedule, origin=origin)
    text = write_schedule(schedule)
    again = read_schedule(text, "x.json")
    assert again == schedule
    assert write_schedule(again) == text


def test_a_file_written_before_topologies_said_what_joins_the_ranks_is_still_read():
    old = RELAYED.replace(',\n    "inside": "unknown"', "")
    assert "inside" not in old
    assert read_schedule(old, "old.json") == relayed_scatter()


def test_a_packed_message_says_so():
    schedule = relayed_scatter()
    packed = replace(schedule, messages=tuple(replace(m, packed=len(m.chunks) > 1) for m in schedule.messages))
    text = write_schedule(packed)
    assert text.count('"packed": true') == sum(len(m.chunks) > 1 for m in schedule.messages) == 1
    assert read_schedule(text, "x.json") == packed


def test_what_is_added_can_be_packed_too():
    schedule = ring_allreduce(3)
    packed = replace(schedule, messages=tuple(replace(m, packed=m.reduce) for m in schedule.messages))
    text = write_schedule(packed)
    assert text.count('"reduce": true, "packed": true') == sum(m.reduce for m in schedule.messages) == 6
    assert read_schedule(text, "x.json") == packed


def test_a_long_message_stays_on_one_line():
    schedule = ring_allgather(3)
    message = replace(schedule.messages[0], chunks=(0, 1, 2) * 40, start_us=1 / 3, end_us=2e7 / 3)
    text = write_schedule(replace(schedule, messages=(message,)))
    lines = [line for line in text.splitlines() if '"link": ' in line]
    assert len(lines) == 1
    assert json.loads(lines[0])["chunks"] == [0, 1, 2] * 40


def test_a_schedule_without_messages_can_be_written():
    empty = replace(ring_allgather(3), messages=())
    assert read_schedule(write_schedule(empty), "x.json") == empty


def test_whole_numbers_of_bytes_and_time_are_written_as_what_they_are_read_as():
    schedule = ring_allgather(3)
    whole = replace(
        schedule,
        chunk_bytes=1_000_000,
        messages=tuple(replace(m, start_us=int(m.start_us), end_us=int(m.end_us)) for m in schedule.messages),
    )
    assert write_schedule(whole) == write_schedule(schedule)


def test_what_json_cannot_hold_is_not_written():
    with pytest.raises(ValueError, match="JSON"):
        write_schedule(replace(ring_allgather(3), chunk_bytes=math.inf))


def test_a_wrong_schedule_can_be_read_so_that_the_verifier_can_say_what_is_wrong():
    schedule = ring_allreduce(3)
    wrong = replace(schedule, messages=(replace(schedule.messages[0], start_us=-1.0), *schedule.messages[2:]))
    again = read_schedule(write_schedule(wrong), "x.json")
    assert again == wrong
    assert verify_schedule(again) == verify_schedule(wrong) != ()


def changed(place, value):
    """The file with one field changed, or left out where the value is ``...``."""
    content = copy.deepcopy(json.loads(write_schedule(replace(relayed_scatter(), origin=ORIGIN))))
    *way, last = place
    inner = content
    for key in way:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return json.dumps(content)


@pytest.mark.parametrize(
    ("place", "value", "field", "what"),
    [
        (["format"], "taccl-topology", "format", "taccl-schedule"),
        (["format"], ..., "format", "missing"),
        (["version"], 2, "version", "version 1"),
        (["version"], "1", "version", "whole number"),
        (["versoin"], 1, "versoin", "not a known field"),
        (["chunk_bytes"], 0, "chunk_bytes", "above 0"),
        (["chunk_bytes"], -5.0, "chunk_bytes", "above 0"),
        (["chunk_bytes"], None, "chunk_bytes", "null"),
        (["collective"], [], "collective", "object"),
        (["collective", "kind"], "allscatter", "collective.kind", "scatter"),
        (["collective", "num_ranks"], 4, "collective.num_ranks", "3 ranks"),
        (["collective", "chunks_per_rank"], 0, "collective.chunks_per_rank", "at least 1"),
        (["collective", "root"], 3, "collective", "root 3 does not exist"),
        (["collective", "root"], -1, "collective.root", "at least 0"),
        (["collective", "size"], 1, "collective.size", "not a known field"),
        (["topology"], ..., "topology", "missing"),
        (["topology", "links", 0, "to"], 3, "topology.links.0.to", "3"),
        (["topology", "ports"], 1, "topology.ports", "list"),
        (["origin"], ..., "origin", "missing"),
        (["origin"], "milp", "origin", "object"),
        (["origin", "engine"], ..., "origin.engine", "missing"),
        (["origin", "engine"], 3, "origin.engine", "text"),
        (["origin", "seed"], 0.5, "origin.seed", "whole number"),
        (["origin", "bound_us"], "12", "origin.bound_us", "finite number"),
        (["origin", "time"], 1, "origin.time", "not a known field"),
        (["scratch"], [[], []], "scratch", "2 lists"),
        (["scratch"], {}, "scratch", "list"),
        (["scratch", 1], None, "scratch.1", "list"),
        (["scratch", 1], [1, 3], "scratch.1.1", "0..2"),
        (["scratch", 1], [1, -2], "scratch.1.1", "at least 0"),
        (["scratch", 2], [True], "scratch.2.0", "true"),
        (["messages"], ..., "messages", "missing"),
        (["messages", 1], 7, "messages.1", "object"),
        (["messages", 1, "link"], 4, "messages.1.link", "0..3"),
        (["messages", 1, "link"], -1, "messages.1.link", "at least 0"),
        (["messages", 1, "chunks"], [], "messages.1.chunks", "no chunk"),
        (["messages", 1, "chunks"], [2, 3], "messages.1.chunks.1", "0..2"),
        (["messages", 0, "chunks"], 1, "messages.0.chunks", "list"),
        (["messages", 0, "start_us"], "0", "messages.0.start_us", "finite number"),
        (["messages", 0, "end_us"], ..., "messages.0.end_us", "missing"),
        (["messages", 0, "reduce"], 0, "messages.0.reduce", "true or false"),
        (["messages", 0, "reduce"], ..., "messages.0.reduce", "missing"),
        (["messages", 0, "packed"], 1, "messages.0.packed", "true or false"),
        (["messages", 0, "lnk"], 0, "messages.0.lnk", "not a known field"),
    ],
)
def test_a_malformed_file_is_refused_with_its_name_and_the_field(place, value, field, what):
    with pytest.raises(InputError) as caught:
        read_schedule(changed(place, value), "some/file.json")
    assert caught.value.path == "some/file.json"
    assert caught.value.field == field
    assert what in caught.value.what


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": "taccl-schedule", "format": "x"}', "\x00"])
def test_a_text_that_is_no_schedule_is_refused(text):
    with pytest.raises(InputError) as caught:
        read_schedule(text, "x.json")
    assert caught.value.path == "x.json"


def places(value, way=()):
    """Ways to everything inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield [*way, key]
        yield from places(item, [*way, key])


PLACES = list(places(json.loads(write_schedule(replace(relayed_scatter(), origin=ORIGIN)))))
VALUES = st.sampled_from([..., None, True, -1, 0, 1, 2, 1000, 0.5, -0.0, 1e308, "", "x", [], [0], [[]], {}, {"x": 1}])


@settings(max_examples=400)
@given(st.sampled_from(PLACES), VALUES)
def test_a_file_with_any_field_changed_is_read_or_refused_and_never_worse(place, value):
    try:
        schedule = read_schedule(changed(place, value), "x.json")
    except InputError as refused:
        named = refused.path
    else:
        named = "x.json"
        verify_schedule(schedule)
        assert read_schedule(write_schedule(schedule), "x.json") == schedule
    assert named == "x.json"
