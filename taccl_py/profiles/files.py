"""Runtime profile files; ``taccl_py/profiles/README.md`` documents the form."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from taccl_py.jsonio import Fields, parse_json, read_text
from taccl_py.profiles.model import (
    PROTOCOL_FIELDS,
    UNLIMITED,
    Figure,
    ProtocolCosts,
    RuntimeProfile,
    UsableShare,
)
from taccl_py.runtimes import MSCCLPP, RUNTIMES

FORMAT = "taccl-runtime-profile"
VERSION = 1
MEDIA = ("nvlink", "xgmi", "pcie", "nic", "nvls", "nvlstree", "efa", "tcpx", "tcpxo")
# Protocols that a profile of a runtime says something about; MSCCL++ has packets (LL) and plain stores (Simple).
PROTOCOLS_OF = {**dict.fromkeys(RUNTIMES, ("LL", "LL128", "Simple")), MSCCLPP.name: ("LL", "Simple")}

_MOST_US, _MOST_GBPS = 1e6, 1e5
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
# Fields that may be left out, and fields of which null means no limit.
_OPTIONAL = {"tail": 0.0, "threads": 0.0, "payload_bytes": UNLIMITED, "slots": UNLIMITED}
_UNLIMITED = ("tb_gbps", "copy_gbps", "reduce_gbps", "payload_bytes", "slots")


def read_profile(path: Path) -> RuntimeProfile:
    """Return the runtime profile of a file.

    Raises
    ------
    InputError
        If the file cannot be read, is no runtime profile, lacks a protocol of its runtime, or has a wrong or unknown field.
    """
    return profile_from_json(parse_json(read_text(path), str(path)), str(path))


def profile_from_json(value: Any, path: str) -> RuntimeProfile:
    """Return the runtime profile of a JSON value; see `read_profile`."""
    return _ProfileReader(value, path).profile()


class _ProfileReader:
    """Reads one profile, noting the origin of every value."""

    def __init__(self, value: Any, path: str) -> None:
        self._fields = Fields(value, path)
        self._figures: dict[str, Figure] = {}
        self._source, self._measured = "", False

    def profile(self) -> RuntimeProfile:
        fields = self._fields
        fields.header(FORMAT, VERSION)
        name, title = fields.text("name"), fields.text("title")
        if not _NAME.fullmatch(name):
            fields.fail("name", f"found {name!r}; letters, digits, '.', '_', '+' and '-' are possible")
        runtime, gpu = fields.text("runtime", ""), fields.text("gpu", "")
        if runtime and runtime not in PROTOCOLS_OF:
            fields.fail("runtime", f"found {runtime!r}; write one of {', '.join(PROTOCOLS_OF)}")
        self._source, self._measured = fields.text("source"), fields.boolean("measured", False)
        protocols = self._protocols(fields, runtime)
        shares = self._shares(fields)
        nic_us = self._value(fields, "nic_message_us", "nic_message_us", 0.0)
        fabric = self._fabric(fields)
        gpu_gbps = self._value(fields, "gpu_gbps", "gpu_gbps", UNLIMITED)
        most = self._value(fields, "most_threadblocks", "most_threadblocks", UNLIMITED)
        extra = self._value(fields, "launch_per_gpu_us", "launch_per_gpu_us", 0.0)
        nvls_us = self._value(fields, "nvls_us", "nvls_us", 0.0)
        fields.finish()
        return RuntimeProfile(
            name, title, runtime, gpu, self._source, protocols, shares, nic_us,
            fabric, gpu_gbps, most, extra, nvls_us, self._figures,
        )  # fmt: skip

    def _protocols(self, fields: Fields, runtime: str) -> dict[str, ProtocolCosts]:
        given = fields.object("protocols")
        known = PROTOCOLS_OF.get(runtime, ("LL", "LL128", "Simple"))
        missing = [name for name in known if not given.has(name)]
        if missing:
            fields.fail(
                "protocols", f"{missing[0]} is missing; a profile of {runtime or 'a runtime'} needs {', '.join(known)}"
            )
        protocols = {name: self._protocol(given, name) for name in known}
        given.finish()
        return protocols

    def _protocol(self, protocols: Fields, name: str) -> ProtocolCosts:
        fields = protocols.object(name)
        values: dict[str, Any] = {
            key: self._value(fields, key, f"protocols/{name}/{key}", _OPTIONAL.get(key)) for key in PROTOCOL_FIELDS
        }
        fields.finish()
        if values["wire"] < 1:
            fields.fail("wire", f"found {values['wire']:g}; bytes on the wire for a byte of data are at least 1")
        values["threads"] = int(values["threads"])
        return ProtocolCosts(**values)

    def _shares(self, fields: Fields) -> dict[str, UsableShare]:
        if not fields.has("shares"):
            return {}
        given = fields.object("shares")
        shares = {}
        for medium in MEDIA:
            if not given.has(medium):
                continue
            of_gbps = 0.0
            if isinstance(given.raw(medium), dict):
                of_gbps = given.object(medium).number("of_gbps", 0.0, least=0.0, most=_MOST_GBPS)
            value = self._value(given, medium, f"shares/{medium}", None, more=("of_gbps",))
            if not 0 < value <= 1:
                given.fail(medium, f"found {value:g}; a share is above 0 and at most 1")
            shares[medium] = UsableShare(value, of_gbps)
        given.finish()
        return shares

    def _fabric(self, fields: Fields) -> dict[str, float]:
        if not fields.has("fabric_us"):
            return {}
        given = fields.object("fabric_us")
        found = {name: self._value(given, name, f"fabric_us/{name}", None) for name in given.names()}
        given.finish()
        return found

    def _value(self, fields: Fields, key: str, place: str, default: float | None, *, more: Iterable[str] = ()) -> float:
        """A number, or an object of a number and its origin."""
        if not fields.has(key) and default is not None:
            return default
        source, measured = self._source, self._measured
        if isinstance(fields.raw(key), dict):
            item = fields.object(key)
            source, measured = item.text("source", source), item.boolean("measured", measured)
            value = _number(item, "value", place)
            for other in more:
                item.number(other, 0.0)
            item.finish()
        else:
            value = _number(fields, key, place)
        self._figures[place] = Figure(value, source, measured)
        return value


def _number(fields: Fields, key: str, place: str) -> float:
    """A number in the range of its unit; null where there may be no limit."""
    what = place.rpartition("/")[2]
    if what in _UNLIMITED and fields.raw(key) is None:
        return UNLIMITED
    most = _MOST_US if what.endswith("_us") else _MOST_GBPS if what.endswith("_gbps") else 1e12
    value = fields.number(key, least=None)
    if (
        value < 0
        or value > most
        or (value == 0 and (what.endswith(("_gbps", "_bytes")) or what in ("wire", "slots", "value")))
    ):
        unit = {"_us": "microseconds", "_gbps": "GB/s (10^9 bytes a second)"}.get(
            what[what.rfind("_") :], "a plain number"
        )
        above = "above 0" if what.endswith("_gbps") else "from 0"
        fields.fail(key, f"found {value:g}; {unit} {above} and at most {most:g} are needed")
    return value


def profile_to_json(profile: RuntimeProfile) -> dict[str, Any]:
    """Return the form of a profile that `profile_from_json` reads back without any change."""

    def value(place: str, number: float, **more: float) -> Any:
        figure = profile.figures.get(place)
        plain = None if number == UNLIMITED else number
        if figure is None or (figure.source == profile.source and not figure.measured and not more):
            return plain
        return {"value": plain, **more, "source": figure.source, "measured": figure.measured}

    return {
        "format": FORMAT,
        "version": VERSION,
        "name": profile.name,
        "title": profile.title,
        **({"runtime": profile.runtime} if profile.runtime else {}),
        **({"gpu": profile.gpu} if profile.gpu else {}),
        "source": profile.source,
        "protocols": {
            name: {key: value(f"protocols/{name}/{key}", getattr(costs, key)) for key in PROTOCOL_FIELDS}
            for name, costs in profile.protocols.items()
        },
        "shares": {
            medium: value(f"shares/{medium}", share.value, **({"of_gbps": share.of_gbps} if share.of_gbps else {}))
            for medium, share in profile.shares.items()
        },
        "nic_message_us": value("nic_message_us", profile.nic_message_us),
        "fabric_us": {name: value(f"fabric_us/{name}", extra) for name, extra in profile.fabric_us.items()},
        **({"gpu_gbps": value("gpu_gbps", profile.gpu_gbps)} if profile.gpu_gbps != UNLIMITED else {}),
        **(
            {"most_threadblocks": value("most_threadblocks", profile.most_threadblocks)}
            if profile.most_threadblocks != UNLIMITED
            else {}
        ),
        "launch_per_gpu_us": value("launch_per_gpu_us", profile.launch_per_gpu_us),
        **({"nvls_us": value("nvls_us", profile.nvls_us)} if profile.nvls_us else {}),
    }
