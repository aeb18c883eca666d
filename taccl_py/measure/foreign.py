"""Samples from files of any kind: CSV, records of profiles, and what benchmarks print. Headers tell which one a file is of."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from taccl_py.errors import InputError
from taccl_py.measure.copy_matrices import (
    is_nvbandwidth,
    is_p2p,
    is_transfer_bench,
    nvbandwidth_lines,
    read_nvbandwidth,
    read_p2p,
    read_transfer_bench,
)
from taccl_py.measure.osu import is_osu, read_osu
from taccl_py.measure.perftest import is_perftest, read_perftest
from taccl_py.measure.record import RECORD_FORMAT, samples_of_record
from taccl_py.measure.samples import Sample, read_samples
from taccl_py.measure.sendrecv import is_nccl_tests, read_sendrecv

# Prefix that launchers put before each line: mpirun --tag-output (of Open MPI 4 and 5), srun --label.
_MARK = re.compile(r"^(?:\[[^\]\s]*\d+,\s*\d+\]<(?:stdout|stderr)>:\s?|\s*\d+:\s)")

_KNOWN = (
    "osu_latency, osu_bw, sendrecv_perf, p2pBandwidthLatencyTest, nvbandwidth, TransferBench p2p, ib_write_bw, ib_write_lat or taccl "
    "profile --record; give one of these"
)
_Reader = tuple[Callable[[Sequence[str]], bool], Callable[[Sequence[str], str], list[Sample]], str]
_READERS: tuple[_Reader, ...] = (
    (is_osu, read_osu, "rows of size and value"),
    (is_nccl_tests, read_sendrecv, "rows of size and time"),
    (is_p2p, read_p2p, "bandwidths between two GPUs"),
    (is_nvbandwidth, read_nvbandwidth, "bandwidths between two GPUs"),
    (is_transfer_bench, read_transfer_bench, "bandwidths between two GPUs"),
    (is_perftest, read_perftest, "rows of bytes and iterations"),
)


def read_any(text: str, path: str) -> tuple[Sample, ...]:
    """Samples of a CSV file, of a profile's record or of what a benchmark printed, by its headers.

    Parameters
    ----------
    text
        Of `osu_latency` or `osu_bw` between ranks 0 and 1; of `sendrecv_perf`, where every rank sends to the next at the same
        time; of `p2pBandwidthLatencyTest`, `nvbandwidth` or TransferBench's preset p2p, which copy between two GPUs at a time;
        of `ib_write_bw` or `ib_write_lat` from rank 0 to rank 1; of a record of ``taccl profile``. A launcher may have marked
        each line with its rank.
    path
        File name for error messages.

    Raises
    ------
    InputError
        If nothing can be read from it, or it is of a collective.
    """
    if RECORD_FORMAT in text[:100]:
        return samples_of_record(text, path)
    is_json = text.lstrip()[:1] == "{" and '"nvbandwidth"' in text
    lines = nvbandwidth_lines(text, path) if is_json else _unmarked(text.splitlines())
    for is_of_it, read, what in _READERS:
        if is_of_it(lines):
            samples = read(lines, path)
            if not samples:
                raise InputError(f"has no {what}; save the whole output of the benchmark", path=path)
            return tuple(samples)
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "src")
    if "," not in first and "src" not in first:
        raise InputError(
            f"is neither CSV with the columns src,dst,size_bytes,time_us nor the output of {_KNOWN}", path=path
        )
    return read_samples(text, path)


def _unmarked(lines: list[str]) -> list[str]:
    """Lines without the marks of a launcher, where most have one."""
    marked = sum(_MARK.match(line) is not None for line in lines)
    return [_MARK.sub("", line, count=1) for line in lines] if 2 * marked > len(lines) else lines
