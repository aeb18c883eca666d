"""Small results that reports are made of."""

from taccl_py.collective import Kind
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.deliver import lower_best
from taccl_py.pipeline.resolve import Request
from taccl_py.pipeline.search import synthesize
from taccl_py.report.items import Item
from taccl_py.runtimes import RUNTIMES
from taccl_py.synthesis.engine import Events
from taccl_py.units import SizeRange

SIZES = SizeRange(1 << 10, 1 << 29)  # 20 of them, doubling


def item(topology: str, kind: Kind, nodes: int | None = None, size_bytes: int = 1 << 20) -> Item:
    """A template with its program."""
    request = Request(topology=topology, kind=kind, nodes=nodes, size_bytes=size_bytes, engine="templates")
    synthesis, lowered = lower_best(synthesize(request, Events()), LoweringOptions(RUNTIMES["executor"]))
    return Item(f"{kind} {topology}", synthesis.schedule, lowered.program)
