"""Rates and latencies that dumps do not state, with their sources.

Bandwidths are those that NCCL 2.30.7 (``graph/topo.h``) and RCCL (``graph/topo.h``) count with, in GB/s and per direction.
Latencies are NCCL's tuning constants for one LL step of a ring (``graph/tuning.cc``). None of them was measured on the
machine at hand; `ALPHA_SOURCE` says so in every topology that is made of them.
"""

from __future__ import annotations

import re

from taccl_py.errors import InputError

# One message over NVLink or xGMI, over PCIe, over the network.
GPU_LINK_ALPHA_US, PCI_ALPHA_US, NETWORK_ALPHA_US = 0.6, 1.0, 2.7
ALPHA_SOURCE = (
    f"alphas are NCCL 2.30.7's tuning constants for one LL step of a ring (NVLink and xGMI {GPU_LINK_ALPHA_US} us, PCIe "
    f"{PCI_ALPHA_US} us, network {NETWORK_ALPHA_US} us), not measured on this machine"
)

DEFAULT_PCI_GBPS = 24.0  # Gen4 x16
DEFAULT_NET_GBPS = 12.5  # 100 Gb/s
_GIGATRANSFERS = {"2.5": 15, "5": 30, "8": 60, "16": 120, "32": 240, "64": 480}  # NCCL's units of 1/80 GB/s a lane

_NVLINK_GBPS = {60: 18.0, 70: 20.0, 80: 20.0, 86: 12.0, 90: 20.6, 100: 40.1}
_XGMI_GBPS = {"gfx90a": 36.0, "gfx94": 48.0, "gfx95": 48.0}
_OLD_XGMI_GBPS = 24.0


def nvlink_gbps(compute_capability: int) -> float:
    """One NVLink of a GPU with this compute capability (80 for an A100), one direction, in GB/s."""
    known = [sm for sm in _NVLINK_GBPS if sm <= compute_capability]
    return _NVLINK_GBPS[max(known) if known else min(_NVLINK_GBPS)]


def xgmi_gbps(architecture: str) -> float:
    """One xGMI link of a GPU by RCCL's name of its architecture (``gfx942``, or ``910`` for gfx90a), one direction, in GB/s."""
    name = architecture if architecture.startswith("gfx") else f"gfx{architecture}"
    name = "gfx90a" if name == "gfx910" else name
    return next((gbps for prefix, gbps in _XGMI_GBPS.items() if name.startswith(prefix)), _OLD_XGMI_GBPS)


def pci_gbps(speed: str, width: str) -> float:
    """A PCIe slot as NCCL counts it, one direction, in GB/s.

    Parameters
    ----------
    speed
        Transfers as the kernel writes them: ``16.0 GT/s PCIe``. What is not understood counts as 8 GT/s.
    width
        Lanes; 0 or nothing counts as 16.

    Raises
    ------
    InputError
        If the width is no number.
    """
    match = re.match(r"\s*([0-9]+)(\.[0-9]*[1-9])?", speed)
    lane = _GIGATRANSFERS.get("".join(filter(None, match.groups())), 60) if match else 60
    if not re.fullmatch(r"[0-9]{0,3}", width.strip()):
        raise InputError(f"found {width[:20]!r}, a number of lanes is needed", field="link_width")
    return (int(width.strip() or 0) or 16) * lane / 80


def socket_gbps(arch: str, vendor: str, model: int) -> float:
    """Rate between two CPUs, one direction, in GB/s, as NCCL counts it.

    Parameters
    ----------
    arch, vendor
        As dumps write them: ``x86_64``, ``AuthenticAMD``.
    model
        Model number of an Intel CPU.
    """
    if arch == "ppc64":
        return 32.0
    if arch == "arm64":
        return 6.0
    if vendor == "AuthenticAMD":
        return 16.0
    if vendor != "GenuineIntel":
        return 6.0
    return next((gbps for least, gbps in ((0xCF, 40.0), (0x8F, 22.0), (0x55, 10.0)) if model >= least), 6.0)
