"""Files that cover a range of sizes."""

from itertools import pairwise

import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.errors import LoweringError
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.lowering.program import Protocol
from taccl_py.lowering.protocol import choose_protocol
from taccl_py.portfolio import cover
from taccl_py.portfolio.candidates import Candidate
from taccl_py.portfolio.cover import cover_sizes
from taccl_py.portfolio.variants import at_size, lower_variants
from taccl_py.runtimes import RUNTIMES
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.schedule.timing import build_schedule
from taccl_py.simulate.cost_curve import cost_curve
from taccl_py.solvers.limits import always, never
from taccl_py.synthesis.engine import Options
from taccl_py.synthesis.race import Racer
from taccl_py.units import SizeRange
from tests.instances import MB, full

OPTIONS = LoweringOptions(RUNTIMES["executor"])
SIZES = SizeRange(1024, 1024 * MB)


def exchanged():
    """Programs of an AllGather between two ranks, each of which has a chunk, or two."""
    topology, found = full(2), []
    for chunks in (1, 2):
        untimed = [
            UntimedMessage(link, (topology.links[link].src * chunks + part,), part, part + 1)
            for link in range(2)
            for part in range(chunks)
        ]
        schedule = build_schedule(topology, Collective(Kind.ALLGATHER, 2, chunks), MB, untimed)
        found.append(Candidate("made up", "none", schedule, cost_curve(schedule, SIZES.low_bytes, SIZES.high_bytes)))
    return lower_variants(found, [SIZES.low_bytes, SIZES.high_bytes], OPTIONS, Racer(Options(), 1.0, 1))


def files(racer, over=never):
    return cover_sizes(exchanged(), SIZES, OPTIONS, racer, over, never)


def text_of(file):
    return file.min_bytes, file.max_bytes, file.instances, str(file.found.program)


def test_files_serve_all_sizes_and_large_chunks_are_cut_into_instances():
    found = files(Racer(Options(), 1.0, 1))
    assert (found[0].min_bytes, found[-1].max_bytes) == (SIZES.low_bytes, SIZES.high_bytes)
    assert all(file.max_bytes + 1 == after.min_bytes for file, after in pairwise(found))
    assert found[0].instances == 1
    # Two messages for one take an alpha more, which is of no account at the largest sizes alone.
    cut = cover_sizes(
        exchanged(), SizeRange(512 * MB, SIZES.high_bytes), OPTIONS, Racer(Options(), 1.0, 1), never, never
    )
    assert cut[-1].instances == cover._INSTANCES[-1]


def test_files_are_the_same_whether_programs_are_made_ahead_in_other_processes_or_one_by_one(monkeypatch):
    with Racer(Options(), 1.0, 2).running() as racer:
        ahead = [text_of(file) for file in files(racer)]
    monkeypatch.setattr(cover._FilePrograms, "make_likely", lambda *_: None)
    assert [text_of(file) for file in files(Racer(Options(), 1.0, 1))] == ahead


def test_when_time_is_up_one_program_for_each_file_is_enough(monkeypatch):
    made = []
    lower_with = cover.lower_with
    monkeypatch.setattr(cover, "lower_with", lambda *each: made.append(each) or lower_with(*each))
    found = files(Racer(Options(), 1.0, 1), over=always)
    assert len(made) == len(found)
    assert {file.instances for file in found} == {1}


def test_what_cannot_be_lowered_anew_is_left_out_or_is_the_error(monkeypatch):
    def failing(variant, low, high, options, stopped):
        if options.instances > 1:
            raise LoweringError("no room", runtime="executor", limit="scratch")
        return lower_with(variant, low, high, options, stopped)

    lower_with = cover.lower_with
    monkeypatch.setattr(cover, "lower_with", failing)
    assert {file.instances for file in files(Racer(Options(), 1.0, 1))} == {1}
    monkeypatch.setattr(
        cover, "lower_with", lambda *_: failing(*[None] * 3, LoweringOptions(OPTIONS.runtime, instances=2), None)
    )
    with pytest.raises(LoweringError, match="no room"):
        files(Racer(Options(), 1.0, 1))


def test_where_the_protocol_changes_is_found_without_timing_every_size(monkeypatch):
    topology = full(2)
    untimed = [UntimedMessage(link, (link,), 0, 1) for link in range(2)]
    schedule = build_schedule(topology, Collective(Kind.ALLGATHER, 2), MB, untimed)
    options = LoweringOptions(RUNTIMES["executor"])
    small, large = (choose_protocol(at_size(schedule, size), None, options.runtime) for size in (8, 1 << 30))
    assert small.protocol is Protocol.LL
    assert large.protocol is not Protocol.LL
    monkeypatch.setattr(cover, "at_size", None)
    last = cover._last_with(schedule, Protocol.LL, 8, 1 << 30, Protocol.LL, options)
    monkeypatch.undo()
    chosen = [choose_protocol(at_size(schedule, size), None, options.runtime).protocol for size in (last, last + 1)]
    assert chosen[0] is Protocol.LL
    assert chosen[1] is not Protocol.LL
    # After a protocol for larger messages none for smaller ones comes again.
    assert cover._protocol_at(schedule, 8, Protocol.SIMPLE, options) is Protocol.SIMPLE
