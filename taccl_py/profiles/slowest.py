"""Runtime profile of nodes with different GPUs: of every figure that of the slower GPU.

Programs are the same on all nodes, a message goes at the pace of the slower of its ends, and who is fast waits for the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from taccl_py.profiles.model import PROTOCOL_FIELDS, Figure, ProtocolCosts, RuntimeProfile, UsableShare
from taccl_py.topology.model import GPUS_TOGETHER

# Figures of which less is slower; of all others more is.
_SHARES = "shares/"
_RATES_AND_LIMITS = ("_gbps", "_bytes", "slots", "threads", "threadblocks")
# Media of whose links a share is of one: that of the slowest GPU counts, as it does in a topology. Others are of all links of a GPU, and
# those of the fastest count.
_OF_ONE_LINK = ("xgmi",)


def slowest_of(name: str, profiles: Sequence[RuntimeProfile]) -> RuntimeProfile:
    """Join profiles of a runtime on several GPUs to the one of a machine with all of them.

    Protocols, media and fabrics that one of them lacks are left out.

    Parameters
    ----------
    name
        Name of the joint profile.
    profiles
        Those of the GPUs, at least one.
    """
    slowest = _Slowest(profiles)
    protocols = {
        protocol: ProtocolCosts(
            **{
                key: slowest.value(f"protocols/{protocol}/{key}", (getattr(each.protocols[protocol], key) for each in profiles))
                for key in PROTOCOL_FIELDS
            }
        )
        for protocol in _in_all(each.protocols for each in profiles)
    }  # fmt: skip
    shares = {}
    for medium in _in_all(each.shares for each in profiles):
        whole = min if medium in _OF_ONE_LINK else max
        value = slowest.value(_SHARES + medium, (each.shares[medium].value for each in profiles))
        shares[medium] = UsableShare(value, whole(each.shares[medium].of_gbps for each in profiles))
    fabric_us = {
        fabric: slowest.value(f"fabric_us/{fabric}", (each.fabric_us[fabric] for each in profiles))
        for fabric in _in_all(each.fabric_us for each in profiles)
    }
    numbers = [each.name for each in fields(RuntimeProfile) if each.type == "float"]
    return RuntimeProfile(
        name=name,
        title=f"the slower of {' and '.join(each.title for each in profiles)}",
        runtime=profiles[0].runtime,
        gpu=GPUS_TOGETHER.join(each.gpu for each in profiles),
        source=f"of every figure the slower one of {' and '.join(each.name for each in profiles)}",
        protocols=protocols,
        shares=shares,
        fabric_us=fabric_us,
        **{key: slowest.value(key, (getattr(each, key) for each in profiles)) for key in numbers},
        figures=slowest.figures,
    )


def _in_all(mappings: Iterable[Mapping[str, object]]) -> list[str]:
    """Keys of the first mapping that all others have."""
    first, *others = mappings
    return [key for key in first if all(key in other for other in others)]


class _Slowest:
    """Figures that are chosen, with their origins."""

    def __init__(self, profiles: Sequence[RuntimeProfile]) -> None:
        self._profiles = profiles
        self.figures: dict[str, Figure] = {}

    def value(self, place: str, values: Iterable[Any]) -> Any:
        """The slowest of the values at a place, one of each profile."""
        found = [*values]
        is_less_slower = place.startswith(_SHARES) or place.endswith(_RATES_AND_LIMITS)
        slowest = min(found) if is_less_slower else max(found)
        figure = self._profiles[found.index(slowest)].figures.get(place)
        if figure is not None:
            self.figures[place] = figure
        return slowest
