"""Logs of nccl-tests and rccl-tests, old and new, and what is no such log."""

import pytest

from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.measure.nccl_tests import LogRow, parse_log, read_times

NEW = """\
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 4096 maxBytes 67108864 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   4711 on node-1 device  0 [0000:11:00] AMD Instinct MI300X
#  Rank  1 Group  0 Pid   4712 on node-1 device  1 [0000:2f:00] AMD Instinct MI300X
#  Rank  2 Group  0 Pid   4711 on node-2 device  0 [0000:11:00] AMD Instinct MI300X
#  Rank  3 Group  0 Pid   4712 on node-2 device  1 [0000:2f:00] AMD Instinct MI300X
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        4096          1024     float     sum      -1    12.34    0.33    0.50      0    11.50    0.36    0.53      0
node-1:4711:4711 [0] NCCL INFO comm 0x1 rank 0
    67108864      16777216     float     sum      -1    428.0  156.80  235.20      0    427.0  157.16  235.75    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 118.1
"""

OLD = """\
# nThread: 1 nGpus: 2 minBytes: 8 maxBytes: 1024 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid   2535 on DGX-2 device  0 [0x34] Tesla V100-SXM3-32GB
#   Rank  1 Pid   2535 on DGX-2 device  1 [0x36] Tesla V100-SXM3-32GB
#
#                                             out-of-place                       in-place
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           128   float    20.10    0.05    0.03  0e+00    19.90    0.05    0.03  0e+00
"""


def test_a_new_log():
    log = parse_log(NEW, "log")
    assert (log.kind, log.num_ranks, log.num_processes, log.gpus_per_process) == (Kind.ALLREDUCE, 4, 4, 1)
    assert log.rows == (LogRow(4096, 12.34, 11.5), LogRow(67108864, 428.0, 427.0))


def test_an_old_log_of_one_process():
    log = parse_log(OLD, "log", Kind.ALLGATHER)
    assert (log.kind, log.num_ranks, log.num_processes, log.gpus_per_process) == (None, 2, 1, 2)
    assert log.rows == (LogRow(1024, 20.1, 19.9),)


@pytest.mark.parametrize("mark", ["[1,0]<stdout>:", "0: "])
def test_marks_of_launchers_are_dropped(mark):
    marked = "".join(mark + line for line in NEW.splitlines(keepends=True))
    assert parse_log(marked, "log") == parse_log(NEW, "log")


def test_the_command_tells_the_collective_too():
    assert parse_log("$ mpirun -n 8 ./build/alltoall_perf -b 8\n" + OLD, "log").kind is Kind.ALLTOALL


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("hello\n", "is no log of nccl-tests"),
        (NEW.partition("#       size")[0], "is no log of nccl-tests"),
        (NEW.partition("        4096")[0], "is truncated: it has no rows"),
        (NEW.partition("#        (B)")[0], "is truncated: the units line"),
        (NEW.partition("  427.0")[0], "is cut off in the row of 67108864 bytes"),
        (NEW.replace("(us)", "(ms)"), "has times in ms"),
        (NEW.replace(" 428.0 ", " 0.428 "), "which is not in microseconds"),
        (NEW.replace("12.34", "-1.00"), "has a time of -1.00"),
        (NEW.replace("12.34", "ab.cd"), "has 'ab.cd'"),
        (NEW.replace("0.50      0", "0.50      7"), "has wrong results"),
        (NEW + NEW, "holds several tables"),
        (NEW.replace("all_reduce", "sendrecv"), "is no collective"),
        (NEW.replace("all_reduce", "all_gather"), "is a log of allgather"),
        (NEW + "next: alltoall_perf\n", "names several programs"),
    ],
)
def test_what_is_no_such_log_is_refused_in_one_sentence(text, what):
    with pytest.raises(InputError, match="log: ") as error:
        parse_log(text, "log", Kind.ALLREDUCE)
    assert what in str(error.value)
    assert "\n" not in str(error.value)


def test_a_table_of_times(tmp_path):
    path = tmp_path / "times.csv"
    path.write_text("# source: a bench\nfile,size_bytes,time_us,note\na,1024,7.5,x\nb,1024,8,\na,2048,9,\n")
    first, second = read_times(path)
    assert (first.file, first.rows) == ("a", ((1024, 7.5), (2048, 9.0)))
    assert (second.file, second.rows) == ("b", ((1024, 8.0),))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("file,size_bytes\na,1\n", "has no column time_us"),
        ("file,size_bytes,time_us\n", "has no rows"),
        ("file,size_bytes,time_us\na,1024,-3\n", "row 1: found size_bytes"),
        ("file,size_bytes,time_us\na,1024\n", "row 1: found size_bytes"),
    ],
)
def test_bad_tables_are_refused(tmp_path, text, what):
    path = tmp_path / "times.csv"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_times(path)
    assert what in str(error.value)
