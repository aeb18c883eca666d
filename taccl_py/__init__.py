"""taccl_py: synthesize collective-communication algorithms for GPU clusters.

::

    topologies/*.json   sketches/*.json    "allgather", 16 MiB
           |                  |                    |
       topology/           sketch/           collective.py
           `------------------+--------------------'
                         synthesis/          engines (solvers/ = HiGHS, CBC, ..., CP-SAT)
                              |
                         schedule/           the IR: who sends which chunk over which link when
                     .--------+--------.
                 verify/  simulate/  lowering/  ->  MSCCL XML

The names of `__all__` are the Python interface (``docs/api.md``). They are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taccl_py.answer import Answer, Scope
    from taccl_py.api.checking import check
    from taccl_py.api.comparison import compare
    from taccl_py.api.demands import load_demand, moe_demand, reshard_demand, synthesize_demand
    from taccl_py.api.files import LoweredFile
    from taccl_py.api.lowering import convert, lower
    from taccl_py.api.machines import load_machine
    from taccl_py.api.prediction import predict
    from taccl_py.api.running import run
    from taccl_py.api.search import bound, synthesize, synthesize_sizes
    from taccl_py.collective import Kind
    from taccl_py.demand import DataDemand
    from taccl_py.discover.node_link import from_networkx, to_networkx
    from taccl_py.errors import TacclError
    from taccl_py.schedule.ir import Schedule
    from taccl_py.topology.model import Topology

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "DataDemand",
    "Kind",
    "LoweredFile",
    "Schedule",
    "Scope",
    "TacclError",
    "Topology",
    "bound",
    "check",
    "compare",
    "convert",
    "from_networkx",
    "load_demand",
    "load_machine",
    "lower",
    "moe_demand",
    "predict",
    "reshard_demand",
    "run",
    "synthesize",
    "synthesize_demand",
    "synthesize_sizes",
    "to_networkx",
]

# Module of every name.
_HOMES = {
    "Answer": "answer",
    "DataDemand": "demand",
    "Kind": "collective",
    "LoweredFile": "api.files",
    "Schedule": "schedule.ir",
    "Scope": "answer",
    "TacclError": "errors",
    "Topology": "topology.model",
    "bound": "api.search",
    "check": "api.checking",
    "compare": "api.comparison",
    "convert": "api.lowering",
    "from_networkx": "discover.node_link",
    "load_demand": "api.demands",
    "load_machine": "api.machines",
    "lower": "api.lowering",
    "moe_demand": "api.demands",
    "predict": "api.prediction",
    "reshard_demand": "api.demands",
    "run": "api.running",
    "synthesize": "api.search",
    "synthesize_demand": "api.demands",
    "synthesize_sizes": "api.search",
    "to_networkx": "discover.node_link",
}


def __getattr__(name: str) -> Any:
    """Load a name of the interface when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Names of the interface and those that are there already."""
    return sorted({*globals(), *__all__})
