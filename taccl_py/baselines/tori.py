"""Rings in both directions, recursive doubling and Swing on routed tori, which one would run there.

Each along all dimensions, every part of the data beginning with another one, either with all sums whole or with none.
"""

from __future__ import annotations

from collections.abc import Iterator

from taccl_py.synthesis.templates.messages import TemplatePlan
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.synthesis.templates.torus import Torus, torus_methods


def torus_plans(site: TemplateSite, pattern: str) -> Iterator[TemplatePlan]:
    """AllReduce by one pattern (`taccl_py.synthesis.templates.ring_patterns`); nothing on other machines."""
    torus = Torus.of(site.topology)
    for method in torus_methods(torus) if torus is not None else ():
        part = next(method.parts())
        if method.pattern_names == (pattern,) and method.exchanged in (0, len(part.steps())):
            plan = method.plan(None)
            if plan is not None:
                yield plan
