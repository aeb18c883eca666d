"""Matrices of bandwidths of copies between GPUs as samples: p2pBandwidthLatencyTest, nvbandwidth, TransferBench.

All copy between two GPUs at a time. Where a program prints no latencies, alpha cannot be told from its matrix.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from taccl_py.errors import InputError
from taccl_py.jsonio import Fields, parse_json
from taccl_py.measure.samples import Sample
from taccl_py.units import BYTES_PER_MB

_P2P_BYTES = 160_000_000  # p2pBandwidthLatencyTest copies 40 million integers
_P2P_LATENCY_BYTES = 4  # and one at a time for the latency
_NVBANDWIDTH_BYTES = 512 << 20  # its buffer by default
_TRANSFER_BENCH_BYTES = 64 << 20  # what it copies by default
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_P2P_RATES = re.compile(r"^\s*Unidirectional P2P=Enabled Bandwidth.*Matrix \(GB/s\)")
_P2P_LATENCIES = re.compile(r"^\s*P2P=Enabled Latency.*Matrix \(us\)")
_P2P_ANY_LATENCIES = re.compile(r"^\s*P2P=\w+ Latency.*Matrix \(us\)")
_NVBANDWIDTH = re.compile(r"^\s*nvbandwidth Version", re.IGNORECASE)
_NVBANDWIDTH_COPIES = re.compile(r"^\s*memcpy \w+ GPU\(row\) (->|<-) GPU\(column\) bandwidth \(GB/s\)")
_TRANSFER_BENCH = re.compile(r"^\s*(?:Uni|Bi)directional copy peak bandwidth GB/s")
_TRANSFER_BENCH_SIZE = re.compile(r"^\s*Bytes Per Direction[\s,]+([0-9]+)")
_TRANSFER_BENCH_ROW = re.compile(r"^\s*(CPU|GPU)\s+([0-9]+)\s*(?:->)?\s+(.*)$")


def is_p2p(lines: Sequence[str]) -> bool:
    """True if lines are what CUDA's p2pBandwidthLatencyTest printed."""
    return any(_P2P_RATES.match(line) for line in lines)


def is_nvbandwidth(lines: Sequence[str]) -> bool:
    """True if lines are what nvbandwidth printed."""
    return any(_NVBANDWIDTH.match(line) or _NVBANDWIDTH_COPIES.match(line) for line in lines)


def is_transfer_bench(lines: Sequence[str]) -> bool:
    """True if lines are what the preset p2p of TransferBench printed."""
    return any(_TRANSFER_BENCH.match(line) for line in lines)


def read_p2p(lines: Sequence[str], path: str) -> list[Sample]:
    """Samples of p2pBandwidthLatencyTest with peer access, of its latencies too where they were measured.

    Raises
    ------
    InputError
        If a matrix is cut off.
    """
    rates = _matrix(lines, _P2P_RATES, path)
    if not any(_P2P_ANY_LATENCIES.match(line) for line in lines):
        return [_copy(pair, _P2P_BYTES, gbps) for pair, gbps in rates.items()]
    samples = [Sample(*pair, _P2P_BYTES, _time_us(_P2P_BYTES, gbps)) for pair, gbps in rates.items()]
    latencies = _matrix(lines, _P2P_LATENCIES, path)
    return samples + [Sample(*pair, _P2P_LATENCY_BYTES, time_us) for pair, time_us in latencies.items()]


def read_nvbandwidth(lines: Sequence[str], path: str) -> list[Sample]:
    """Samples of the first matrix of copies from GPU to GPU in one direction; matrices of both directions at once are sums.

    Raises
    ------
    InputError
        If there is no such matrix, or it is cut off.
    """
    title = next((match for line in lines if (match := _NVBANDWIDTH_COPIES.match(line))), None)
    if title is None:
        raise InputError(
            "has no matrix of copies from GPU to GPU in one direction; run nvbandwidth -t device_to_device_memcpy_read_ce",
            path=path,
        )
    rates = _matrix(lines, _NVBANDWIDTH_COPIES, path)
    turned = title[1] == "<-"
    return [_copy((b, a) if turned else (a, b), _NVBANDWIDTH_BYTES, gbps) for (a, b), gbps in rates.items()]


def nvbandwidth_lines(text: str, path: str) -> list[str]:
    """Lines that nvbandwidth prints without ``--json``, of what it printed with it.

    Raises
    ------
    InputError
        If the text is no such JSON.
    """
    lines = ["nvbandwidth Version"]
    for case in Fields(parse_json(text, path), path).object("nvbandwidth").objects("testcases", []):
        if case.has("bandwidth_matrix"):
            rows = [Fields({"cells": row}, path, case.pointer).items("cells") for row in case.items("bandwidth_matrix")]
            lines += [case.text("bandwidth_description"), " ".join(map(str, range(len(rows))))]
            lines += [" ".join(map(str, [number, *cells])) for number, cells in enumerate(rows)]
    return lines


def read_transfer_bench(lines: Sequence[str], path: str) -> list[Sample]:
    """Samples of the matrix of copies in one direction between GPUs.

    Raises
    ------
    InputError
        If there is no such matrix, or it is cut off.
    """
    start = next((i for i, line in enumerate(lines) if re.match(r"\s*Unidirectional copy", line)), None)
    if start is None:
        raise InputError("has only copies in both directions at once; run TransferBench p2p with P2P_MODE=1", path=path)
    size = next((int(match[1]) for line in lines if (match := _TRANSFER_BENCH_SIZE.match(line))), _TRANSFER_BENCH_BYTES)
    devices = re.findall(r"\b([CG]PU)\s+([0-9]+)", lines[start + 1] if start + 1 < len(lines) else "")
    samples = []
    for line in lines[start + 2 :]:
        if _TRANSFER_BENCH.match(line):
            break
        row = _TRANSFER_BENCH_ROW.match(line.replace(",", " "))
        if row is None or row[1] != "GPU":
            continue
        cells = row[3].split()
        if len(cells) != len(devices):
            _fail_cut(path, len(cells), len(devices), f"GPU {row[2]}")
        for (kind, name), cell in zip(devices, cells, strict=True):
            if kind == "GPU" and int(name) != int(row[2]) and _positive(cell):
                samples.append(_copy((int(row[2]), int(name)), size, float(cell)))
    return samples


def _copy(pair: tuple[int, int], size_bytes: int, gbps: float) -> Sample:
    return Sample(*pair, size_bytes, _time_us(size_bytes, gbps), rate_only=True)


def _time_us(size_bytes: int, gbps: float) -> float:
    return size_bytes / BYTES_PER_MB * 1000 / gbps


def _positive(cell: str) -> bool:
    return _NUMBER.fullmatch(cell) is not None and float(cell) > 0


def _matrix(lines: Sequence[str], title: re.Pattern[str], path: str) -> dict[tuple[int, int], float]:
    """Positive cells of the first matrix below a title, without its diagonal."""
    start = next((i for i, line in enumerate(lines) if title.match(line)), None)
    if start is None:
        raise InputError("has no matrix of P2P latencies; save the whole output of p2pBandwidthLatencyTest", path=path)
    rows = [line.split() for line in lines[start + 1 :]]
    names = [word for word in rows[0] if word.isdecimal()] if rows else []
    cells = {}
    for place in range(1, len(names) + 1):
        row = rows[place] if place < len(rows) else []
        if len(row) != len(names) + 1 or not row[0].isdecimal():
            _fail_cut(path, max(len(row) - 1, 0), len(names), " ".join(row[:1]) or names[place - 1])
        for name, cell in zip(names, row[1:], strict=True):
            if name != row[0] and _positive(cell):
                cells[int(row[0]), int(name)] = float(cell)
    return cells


def _fail_cut(path: str, found: int, needed: int, row: str) -> None:
    raise InputError(f"found {found} of {needed} cells; save the whole output", path=path, field=f"row {row}")
