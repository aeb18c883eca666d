"""Members of a portfolio."""

from taccl_py.collective import Collective, Kind
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.lowering.program import Protocol
from taccl_py.lowering.protocol import choose_protocol
from taccl_py.portfolio import build
from taccl_py.portfolio.variants import at_size
from taccl_py.runtimes import RUNTIMES
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.schedule.timing import build_schedule
from tests.instances import MB, full


def test_where_the_protocol_changes_is_found_without_timing_every_size(monkeypatch):
    topology = full(2)
    untimed = [UntimedMessage(link, (link,), 0, 1) for link in range(2)]
    schedule = build_schedule(topology, Collective(Kind.ALLGATHER, 2), MB, untimed)
    options = LoweringOptions(RUNTIMES["executor"])
    small, large = (choose_protocol(at_size(schedule, size), None, options.runtime) for size in (8, 1 << 30))
    assert small.protocol is Protocol.LL
    assert large.protocol is not Protocol.LL
    monkeypatch.setattr(build, "at_size", None)
    last = build._last_with(schedule, Protocol.LL, 8, 1 << 30, Protocol.LL, options)
    monkeypatch.undo()
    chosen = [choose_protocol(at_size(schedule, size), None, options.runtime).protocol for size in (last, last + 1)]
    assert chosen[0] is Protocol.LL
    assert chosen[1] is not Protocol.LL
    # After a protocol for larger messages none for smaller ones comes again.
    assert build._protocol_at(schedule, 8, Protocol.SIMPLE, options) is Protocol.SIMPLE
