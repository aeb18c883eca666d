"""Engines by name, loaded when they are used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from taccl_py.errors import InputError
from taccl_py.spelling import did_you_mean

if TYPE_CHECKING:
    from taccl_py.synthesis.engine import Engine

_ENGINES = {
    "milp": "taccl_py.synthesis.milp:synthesize_milp",
    "cp": "taccl_py.synthesis.milp:synthesize_cp",
    "steps": "taccl_py.synthesis.steps:synthesize_steps",
    "auto": "taccl_py.synthesis.auto:synthesize_auto",
    "flow": "taccl_py.synthesis.flow.engine:synthesize_flow",
    "trees": "taccl_py.synthesis.trees.engine:synthesize_trees",
    "templates": "taccl_py.synthesis.templates.engine:synthesize_templates",
    "greedy": "taccl_py.synthesis.matching.engine:synthesize_greedy",
    "hierarchy": "taccl_py.synthesis.hierarchy.engine:synthesize_hierarchy",
}
ENGINE_NAMES = tuple(_ENGINES)
# Of demands, `taccl_py.synthesis.demands.engine`; one that is a collective can be given to the engines above too.
DEMAND_ENGINES = ("auto", "balance", "multicast", "direct", "greedy", "flow", "trees", "steps", "milp", "cp")
ALL_ENGINE_NAMES = tuple(dict.fromkeys((*ENGINE_NAMES, *DEMAND_ENGINES)))


def load_engine(name: str) -> Engine:
    """Engine by its name on the command line.

    Raises
    ------
    InputError
        If there is no such engine.
    """
    if name not in _ENGINES:
        what = "is for demands" if name in DEMAND_ENGINES else "is not an engine"
        hint = did_you_mean(name, ENGINE_NAMES)
        raise InputError(
            f"{name!r} {what}; {hint}use one of: {', '.join(ENGINE_NAMES)}", path="command line", field="--engine"
        )
    module, function = _ENGINES[name].split(":")
    engine: Engine = getattr(import_module(module), function)
    return engine
