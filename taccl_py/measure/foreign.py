"""Files of other kinds as samples: OSU, nccl-tests' sendrecv_perf, CUDA's p2pBandwidthLatencyTest, records of profiles."""

from __future__ import annotations

import re

from taccl_py.errors import InputError
from taccl_py.measure.record import RECORD_FORMAT, samples_of_record
from taccl_py.measure.samples import Sample, read_samples
from taccl_py.units import BYTES_PER_MB

_OSU_WINDOW = 64  # messages in flight that osu_bw has by default
_P2P_BYTES = 160_000_000  # p2pBandwidthLatencyTest copies 40 million integers
_P2P_LATENCY_BYTES = 4  # and one at a time for the latency
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_P2P_RATES = re.compile(r"Unidirectional P2P=Enabled Bandwidth.*Matrix \(GB/s\)")
_P2P_LATENCIES = re.compile(r"P2P=Enabled Latency.*Matrix \(us\)")


def read_any(text: str, path: str) -> tuple[Sample, ...]:
    """Samples of a CSV file, of a profile's record or of what a benchmark printed, by what stands in it.

    Parameters
    ----------
    text
        Of `osu_latency` or `osu_bw` between ranks 0 and 1; of `sendrecv_perf`, where every rank sends to the next at the same
        time; of `p2pBandwidthLatencyTest`, where latency and bandwidth are measured alone; of a record of ``taccl profile``.
    path
        File name for error messages.

    Raises
    ------
    InputError
        If nothing can be read from it.
    """
    if RECORD_FORMAT in text[:100]:
        return samples_of_record(text, path)
    if re.search(r"^\s*#\s*OSU MPI.*Latency", text, re.MULTILINE):
        return _osu(text, path, latency=True)
    if re.search(r"^\s*#\s*OSU MPI.*Bandwidth", text, re.MULTILINE):
        return _osu(text, path, latency=False)
    if _P2P_RATES.search(text):
        return _p2p(text, path)
    if re.search(r"^#.*\balgbw\b.*\bbusbw\b", text, re.MULTILINE):
        return _sendrecv(text, path)
    return read_samples(text, path)


def _osu(text: str, path: str, *, latency: bool) -> tuple[Sample, ...]:
    samples = []
    for match in re.finditer(rf"^\s*([0-9]+)\s+({_NUMBER})\b", text, re.MULTILINE):
        size, value = int(match.group(1)), float(match.group(2))
        if value <= 0 or (size == 0 and not latency):
            continue
        if latency:
            samples.append(Sample(0, 1, size, value))
        else:
            time_us = _OSU_WINDOW * size / value  # MB/s are bytes per microsecond
            samples.append(Sample(0, 1, size, time_us, joined=_OSU_WINDOW))
    return _some(samples, path, "rows of size and value")


def _sendrecv(text: str, path: str) -> tuple[Sample, ...]:
    ranks = len(re.findall(r"^#\s+Rank\s+[0-9]+\b", text, re.MULTILINE)) or 2
    samples = []
    pattern = rf"^\s*([0-9]+)\s+[0-9]+\s+\w+\s+(?:\w+\s+)?-?[0-9]+\s+({_NUMBER})\s"
    for number, match in enumerate(re.finditer(pattern, text, re.MULTILINE)):
        size, time_us = int(match.group(1)), float(match.group(2))
        if size > 0 and time_us > 0:
            samples += [Sample(r, (r + 1) % ranks, size, time_us, together=f"ring {number}") for r in range(ranks)]
    return _some(samples, path, "rows of size and time")


def _p2p(text: str, path: str) -> tuple[Sample, ...]:
    samples = []
    for (src, dst), rate in _matrix(text, _P2P_RATES, path).items():
        samples.append(Sample(src, dst, _P2P_BYTES, _P2P_BYTES / BYTES_PER_MB * 1000 / rate))
    for (src, dst), time_us in _matrix(text, _P2P_LATENCIES, path).items():
        samples.append(Sample(src, dst, _P2P_LATENCY_BYTES, time_us))
    return _some(samples, path, "matrices of bandwidth and latency")


def _matrix(text: str, title: re.Pattern[str], path: str) -> dict[tuple[int, int], float]:
    """Positive cells of the matrix below a title, without its diagonal."""
    start = title.search(text)
    if start is None:
        raise InputError("has no matrix of P2P latencies; save the whole output of p2pBandwidthLatencyTest", path=path)
    lines = [line.split() for line in text[start.end() :].splitlines()[1:]]
    names = lines[0][1:] if lines else []
    cells = {}
    for row in lines[1 : len(names) + 1]:
        if len(row) != len(names) + 1 or not row[0].isdecimal():
            raise InputError(
                f"found {len(row) - 1} of {len(names)} cells; save the whole output", path=path, field=f"row {row[:1]}"
            )
        for name, cell in zip(names, row[1:], strict=True):
            value = float(cell) if re.fullmatch(_NUMBER, cell) else 0.0
            if name != row[0] and value > 0 and name.isdecimal():
                cells[int(row[0]), int(name)] = value
    return cells


def _some(samples: list[Sample], path: str, what: str) -> tuple[Sample, ...]:
    if not samples:
        raise InputError(f"has no {what}; save the whole output of the benchmark", path=path)
    return tuple(samples)
