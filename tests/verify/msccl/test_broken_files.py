"""One small broken file for every rule: the verifier names the rule, and the same file unbroken passes."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import taccl_py.verify.msccl
from taccl_py.collective import Kind
from taccl_py.runtimes import EXECUTOR, LEGACY, RCCL, Runtime
from taccl_py.verify.msccl import verify_program
from tests.verify.msccl.files import (
    Block,
    File,
    add,
    chain_broadcast,
    chain_reduce,
    direct_alltoall,
    direct_gather,
    direct_scatter,
    make_file,
    nop,
    pair_allreduce,
    pairs_allreduce,
    ring_allgather,
    ring_allreduce,
    ring_reducescatter,
    step,
)


@dataclass(frozen=True)
class Case:
    """A way to break a file: by its parts (`change`) or in its text (`edit`)."""

    rule: str
    name: str
    make: Callable[[], File]
    change: Callable[[File], object] = id
    edit: Callable[[str], str] = lambda text: text
    runtime: Runtime = EXECUTOR
    where: str | None = None
    wanted: dict[str, object] = field(default_factory=dict)


def replace(old: str, new: str, count: int = 1) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new, count)

    return edit


def algo(**changes: object) -> Callable[[File], object]:
    return lambda file: file.attributes.update(changes)


def gpu(rank: int, **changes: object) -> Callable[[File], object]:
    return lambda file: file.gpus[rank].attributes.update(changes)


def tb(rank: int, block: int, **changes: object) -> Callable[[File], object]:
    return lambda file: file.gpus[rank].blocks[block].attributes.update(changes)


def at(rank: int, block: int, index: int, **changes: object) -> Callable[[File], object]:
    return lambda file: file.step(rank, block, index).update(changes)


def both(*changes: Callable[[File], object]) -> Callable[[File], object]:
    return lambda file: [change(file) for change in changes]


def without(rank: int, block: int, index: int) -> Callable[[File], object]:
    return lambda file: file.gpus[rank].blocks[block].steps.pop(index)


def inserted(rank: int, block: int, index: int, *steps: dict[str, object]) -> Callable[[File], object]:
    def change(file: File) -> None:
        file.gpus[rank].blocks[block].steps[index:index] = [dict(step) for step in steps]

    return change


def long_exchange(num_steps: int, flags: int = 0) -> File:
    """Two ranks swap one chunk again and again in an allgather."""
    file = make_file("allgather", 2, 2, (1, 2, 0))
    for rank in range(2):
        pairs = num_steps // 2
        steps = [step("s") if k % 2 == 0 else step("r", dst=f"o{1 - rank}", flag=flags) for k in range(2 * pairs)]
        add(file, rank, 1 - rank, 1 - rank, steps)
        add(file, rank, -1, -1, [step("cpy", "i0", f"o{rank}")])
    return file


def many_waits(num_waits: int, **changes: object) -> File:
    """A sum in which one step of each rank waits for the copies of so many threadblocks."""
    file = pair_allreduce()
    file.attributes.update(changes)
    for rank in range(2):
        file.gpus[rank].attributes["s_chunks"] = 2 + num_waits
        for k in range(num_waits):
            add(file, rank, -1, -1, [step("cpy", "i0", f"s{2 + k}", flag=1)])
        file.gpus[rank].blocks[2].steps[1:1] = [nop((3 + k, 0)) for k in range(num_waits)]
    return file


def sum_of_parts(num_parts: int) -> File:
    """Rank 0 gets copies of rank 1's only chunk and would add all of them in one chain (wrong, but the chain counts)."""
    file = make_file("reduce", 2, 1, (1, 1, num_parts), nchannels=1)
    add(file, 0, -1, 1, [step("r", dst=f"s{k}", flag=1) for k in range(num_parts)])
    add(file, 1, 0, -1, [step("s") for _ in range(num_parts)])
    steps = [step("cpy", "i0", "o0")]
    steps += [step("re", f"s{k}", "o0", after=(0, num_parts - 1) if k == 0 else None) for k in range(num_parts)]
    add(file, 0, -1, -1, steps)
    return file


def both_send_first(messages: int, cnt: int = 1, **changes: object) -> File:
    """Two ranks send everything before they receive anything: needs as many slots as there are messages."""
    n = 2 * messages * cnt
    file = make_file("alltoall", 2, n, (n, n, 0), inplace=0, **changes)
    for rank in range(2):
        theirs, mine = (1 - rank) * messages * cnt, rank * messages * cnt
        steps = [step("s", f"i{theirs + k * cnt}", cnt=cnt) for k in range(messages)]
        steps += [step("r", dst=f"o{theirs + k * cnt}", cnt=cnt) for k in range(messages)]
        add(file, rank, 1 - rank, 1 - rank, steps)
        add(file, rank, -1, -1, [step("cpy", f"i{mine}", f"o{mine}", messages * cnt)])
    return file


def split_alltoall() -> File:
    """Sending and receiving threadblocks that know nothing of each other: fine out of place."""
    file = make_file("alltoall", 2, 2, (2, 2, 0), inplace=0)
    for rank in range(2):
        add(file, rank, 1 - rank, -1, [step("s", f"i{1 - rank}")])
        add(file, rank, -1, 1 - rank, [step("r", dst=f"o{1 - rank}")])
        add(file, rank, -1, -1, [step("cpy", f"i{rank}", f"o{rank}")])
    return file


def many_threadblocks(file: File, count: int, **attributes: object) -> None:
    while len(file.gpus[0].blocks) < count:
        block = {"id": len(file.gpus[0].blocks), "send": -1, "recv": -1, "chan": 0, **attributes}
        file.gpus[0].blocks.append(Block(block, [step("cpy", "i0", "o0")]))


def more_ends_per_channel(file: File) -> None:
    """33 senders on one channel of gpu 0, all to different peers."""
    for peer in range(2, 36):
        file.gpus[0].blocks.append(
            Block({"id": len(file.gpus[0].blocks), "send": peer, "recv": -1, "chan": 0}, [step("s")])
        )


def swapped_halves(file: File) -> None:
    """Rank 1 adds chunk 1 to what it gets for chunk 0."""
    file.step(1, 0, 0).update(srcoff=1)


def late_copy(file: File) -> None:
    """The local copy may run at any time, also after the sum."""
    block = file.gpus[0].blocks[2]
    copy = block.steps.pop(0)
    add(file, 0, -1, -1, [copy])


TEXT_CASES = [
    Case("byte-order-mark", "bom", pair_allreduce, edit=lambda text: "\ufeff" + text, where="line 1"),
    Case("text-nul", "nul", pair_allreduce, edit=replace("  <gpu", " \0<gpu"), where="line 2"),
    Case("text-declaration", "xml_declaration", pair_allreduce, edit=lambda text: '<?xml version="1.0"?>\n' + text),
    Case("text-declaration", "doctype", pair_allreduce, edit=lambda text: "<!DOCTYPE algo>\n" + text),
    Case("text-between-elements", "tab_indent", pair_allreduce, edit=replace("  <gpu", "\t<gpu"), where="line 2"),
    Case("text-between-elements", "words", pair_allreduce, edit=replace("  <gpu", "  gpu 0: <gpu"), where="line 2"),
    Case("tag-blanks", "line_end_in_tag", pair_allreduce, edit=replace(' coll="', '\n coll="')),
    Case("tag-blanks", "tab_in_tag", pair_allreduce, edit=replace(' coll="', '\tcoll="')),
    Case("tag-blanks", "tab_after_name", pair_allreduce, edit=replace("<algo ", "<algo\t")),
    Case("tag-syntax", "no_blank", pair_allreduce, edit=replace(' coll="', 'coll="')),
    Case("tag-syntax", "equals_after_name", pair_allreduce, edit=replace("<gpu id", "<gpu=id")),
    Case("tag-syntax", "word_after_slash", pair_allreduce, edit=replace("/>", "/x>")),
    Case("tag-name-length", "long_name", pair_allreduce, edit=replace(" coll=", f" {'x' * 255}=")),
    Case("attribute-quotes", "single_quotes", pair_allreduce, edit=replace('proto="LL"', "proto='LL'")),
    Case("attribute-quotes", "no_quotes", pair_allreduce, edit=replace('proto="LL"', "proto=LL")),
    Case("attribute-limit", "17_attributes", pair_allreduce,
         edit=replace("<algo", "<algo" + "".join(f' a{k}="0"' for k in range(7)))),
    Case("value-length", "long_value", pair_allreduce, edit=replace('name="test"', f'name="{"é" * 128}"')),
    Case("comment-start", "equals_in_comment", pair_allreduce, edit=lambda text: "<!--a=b -->\n" + text),
    Case("unexpected-end", "open_comment", pair_allreduce, edit=lambda text: text + "<!-- end"),
    Case("unexpected-end", "cut_tag", pair_allreduce, edit=lambda text: text[: text.rindex("hasdep")]),
    Case("unexpected-end", "open_value", pair_allreduce, edit=lambda text: text[: text.rindex('"')]),
    Case("unterminated-element", "cut_file", pair_allreduce, edit=replace("</algo>\n", "")),
    Case("stray-closing-tag", "second_end", pair_allreduce, edit=lambda text: text + "</algo>\n"),
    Case("closing-tag", "blank_in_end", pair_allreduce, edit=replace("</gpu>", "</gpu >")),
    Case("tag-mismatch", "wrong_end", pair_allreduce, edit=replace("</gpu>", "</tb>")),
    Case("step-content", "child_of_step", pair_allreduce, edit=replace("/>", '><x y="1"/></step>')),
    Case("no-algo", "empty", pair_allreduce, edit=lambda text: text[:0]),
    Case("no-algo", "other_root", pair_allreduce, edit=lambda text: text.replace("algo", "plan")),
    Case("first-element", "something_first", pair_allreduce, edit=lambda text: "<meta/>\n" + text),
    Case("second-algo", "two_algorithms", pair_allreduce, edit=lambda text: text + text),
    Case("missing-attribute", "no_outofplace", pair_allreduce, edit=replace(' outofplace="1"', "")),
    Case("missing-attribute", "no_ngpus", pair_allreduce, edit=replace(' ngpus="2"', "")),
    Case("missing-attribute", "no_gpu_id", pair_allreduce, edit=replace(' id="0"', "")),
    Case("missing-attribute", "no_hasdep", pair_allreduce, edit=replace(' hasdep="0"', ""), where="gpu 0 tb 0 step 0"),
    Case("missing-attribute", "no_chan", pair_allreduce, edit=replace(' chan="0"', ""), where="gpu 0 tb 0"),
    Case("missing-attribute", "no_name_in_legacy", pair_allreduce, edit=replace(' name="test"', ""), runtime=LEGACY),
    Case("number-format", "octal", pair_allreduce, edit=replace('maxBytes="', 'maxBytes="0')),
    Case("number-format", "unit", pair_allreduce, edit=replace('minBytes="0"', 'minBytes="1K"')),
    Case("number-format", "no_digits", pair_allreduce, edit=replace('srcoff="0"', 'srcoff=""')),
    Case("number-range", "33_bits", pair_allreduce, edit=replace('srcoff="0"', 'srcoff="4294967296"')),
    Case("number-range", "65_bits", pair_allreduce, edit=replace('maxBytes="', 'maxBytes="99999999999999')),
]  # fmt: skip

ALGO_CASES = [
    Case("collective", "underscore", ring_reducescatter, algo(coll="reduce_scatter")),
    Case("collective", "no_underscore_in_legacy", ring_reducescatter, runtime=LEGACY),
    Case("collective", "unknown", ring_allgather, algo(coll="alltoallv")),
    Case("collective", "other_than_asked", ring_allgather, wanted={"kind": Kind.ALLTOALL}),
    Case("protocol", "lower_case", ring_allgather, algo(proto="simple")),
    Case("rank-count", "no_ranks", ring_allgather, algo(ngpus=0)),
    Case("chunks-per-loop", "zero", ring_allgather, algo(nchunksperloop=0)),
    Case("chunks-per-loop", "not_divisible", ring_allgather, algo(nchunksperloop=4)),
    Case("offset-limit", "too_many_chunks", ring_allgather, algo(nchunksperloop=99999)),
    Case("offset-limit", "too_much_scratch", ring_allgather, gpu(0, s_chunks=40000)),
    Case("name-length", "64_characters", ring_allgather, algo(name="x" * 64)),
    Case("reserved-name", "2D", direct_alltoall, algo(name="2D"), runtime=LEGACY),
    Case("channel-count", "33", ring_allgather, algo(nchannels=33)),
    Case("channel-count", "none", ring_allgather, algo(nchannels=0)),
    Case("placement", "neither", ring_allgather, algo(inplace=0, outofplace=0)),
    Case("size-range", "upside_down", ring_allgather, algo(minBytes=2000, maxBytes=1000)),
    Case("size-range", "no_multiple", ring_allgather, algo(minBytes=4, maxBytes=5)),
    Case("size-range", "never_in_legacy", ring_allgather, algo(maxBytes=0), runtime=LEGACY),
    *(
        Case("size-range", f"{name}_negative_in_{runtime.name}", ring_allgather, algo(**{name: -1}), runtime=runtime)
        for name in ("minBytes", "maxBytes")
        for runtime in (EXECUTOR, RCCL, LEGACY)
    ),
    *(
        Case("count-limit", f"{make.__name__}_in_legacy", make, algo(maxBytes=(1 << 31) + 1), runtime=LEGACY)
        for make in (ring_allgather, ring_allreduce)
    ),
    Case("loop-limit", "rounds", ring_allgather, algo(maxBytes=3 * 32768 * 65536 + 3)),
    Case("thread-count", "no_warps", ring_allgather, algo(nthreads=100), runtime=LEGACY),
    Case("thread-count", "odd_slots", ring_allgather, algo(nthreads=288, proto="Simple"), runtime=LEGACY),
]

GPU_CASES = [
    Case("gpu-ids", "missing", ring_allgather, lambda file: file.gpus.pop(1)),
    Case("gpu-ids", "twice", ring_allgather, gpu(1, id=0), where="gpu 0"),
    Case("gpu-ids", "outside", ring_allgather, gpu(2, id=3), where="gpu 3"),
    Case("child-limit", "ranks", ring_allgather, algo(ngpus=5000, nchunksperloop=5000)),
    Case("scratch-count", "negative", ring_allgather, gpu(1, s_chunks=-1), where="gpu 1"),
    Case("chunk-counts", "input", ring_allgather, gpu(1, i_chunks=3), where="gpu 1"),
    Case("chunk-counts", "output", ring_allreduce, gpu(1, o_chunks=5), where="gpu 1"),
    Case("node-limit", "steps", lambda: long_exchange(4100), where="gpu 0"),
    Case("child-limit", "steps", lambda: long_exchange(1100), where="gpu 0 tb 0"),
    Case("no-threadblock", "none", ring_allgather, lambda file: file.gpus[2].blocks.clear(), where="gpu 2"),
    Case("threadblock-ids", "twice", ring_allgather, tb(0, 1, id=0), where="gpu 0 tb 0"),
    Case("threadblock-ids", "negative", ring_allgather, tb(0, 1, id=-1), where="gpu 0 tb -1"),
    Case("threadblock-ids", "gap", ring_allgather, tb(0, 1, id=2), where="gpu 0"),
    Case("threadblock-ids", "gap_after_1024", pair_allreduce, both(lambda file: many_threadblocks(file, 1025),
         tb(0, 1024, id=1 << 30), at(0, 2, 2, depid=1500)), where="gpu 0"),
    Case("threadblock-limit", "rccl", pair_allreduce, lambda file: many_threadblocks(file, 65), runtime=RCCL),
    Case("resident-threadblocks", "109", pair_allreduce, lambda file: many_threadblocks(file, 109), where="gpu 0"),
    Case("peer-self", "send", ring_allgather, tb(1, 0, send=1), where="gpu 1 tb 0"),
    Case("peer-range", "beyond", ring_allgather, tb(1, 0, recv=3), where="gpu 1 tb 0"),
    Case("peer-range", "minus_two", ring_allgather, tb(1, 1, recv=-2), where="gpu 1 tb 1"),
    Case("channel-range", "minus_one", ring_allgather, tb(1, 1, chan=-1), where="gpu 1 tb 1"),
    Case("channel-range", "32", ring_allgather, tb(1, 0, chan=32), where="gpu 1 tb 0"),
    Case("channel-undeclared", "connected", ring_allgather, algo(nchannels=1), edit=lambda text:
         text.replace('chan="0"', 'chan="1"'), where="gpu 1 tb 0"),
    Case("channel-undeclared", "local", ring_allgather, tb(1, 1, chan=5), where="gpu 1 tb 1"),
    Case("peers-per-channel", "33", ring_allgather, more_ends_per_channel, where="gpu 0"),
    Case("shared-connection", "senders", pair_allreduce, tb(0, 1, chan=0), where="gpu 0"),
    Case("shared-connection", "both_ends", pair_allreduce, both(tb(0, 1, chan=0), tb(1, 1, chan=0)), where="gpu 1"),
    Case("missing-counterpart", "receiver", ring_allgather, tb(1, 0, recv=-1), where="gpu 0 tb 0"),
    Case("missing-counterpart", "sender", ring_allgather, tb(0, 0, send=-1), where="gpu 1 tb 0"),
    Case("count-mismatch", "halves", lambda: direct_alltoall(3, 2), at(0, 1, 0, cnt=1), where="gpu 0 tb 1"),
    Case("message-mismatch", "one_more", ring_allgather, inserted(0, 0, 0, step("s")), where="gpu 0 tb 0"),
]  # fmt: skip

STEP_CASES = [
    Case("step-type", "unknown", ring_allgather, at(0, 0, 1, type="rcsx"), where="gpu 0 tb 0 step 1"),
    Case("step-type", "residual", ring_allgather, at(0, 1, 0, type="ra"), runtime=LEGACY),
    Case("buffer-name", "unknown", ring_allgather, at(0, 1, 0, srcbuf="x"), where="gpu 0 tb 1 step 0"),
    Case("buffer-name", "unused", ring_allgather, at(0, 0, 0, dstbuf=""), where="gpu 0 tb 0 step 0"),
    Case("step-limit", "65_steps", lambda: long_exchange(66), where="gpu 0 tb 0"),
    Case("step-limit", "257_steps", lambda: long_exchange(258), runtime=LEGACY, where="gpu 0 tb 0"),
    Case("step-number", "from_1", ring_allgather, at(0, 1, 0, s=1), where="gpu 0 tb 1 step 0"),
    Case("step-number", "negative", ring_allgather, at(0, 1, 0, s=-1), where="gpu 0 tb 1 step 0"),
    Case("has-dependent", "two", ring_allgather, at(0, 1, 0, hasdep=2), where="gpu 0 tb 1 step 0"),
    Case("count-range", "zero", ring_allgather, at(0, 1, 0, cnt=0), where="gpu 0 tb 1 step 0"),
    Case("count-range", "negative", ring_allgather, at(0, 1, 0, cnt=-1), where="gpu 0 tb 1 step 0"),
    Case("count-range", "72", lambda: ring_allgather(3, 72), where="gpu 0 tb 1 step 0"),
    Case("missing-peer", "send", ring_allgather, at(0, 1, 0, type="s"), where="gpu 0 tb 1 step 0"),
    Case("missing-peer", "receive", ring_allgather, at(0, 1, 0, type="r"), where="gpu 0 tb 1 step 0"),
    Case("buffer-bounds", "beyond", ring_allgather, at(0, 1, 0, dstoff=3), where="gpu 0 tb 1 step 0"),
    Case("buffer-bounds", "minus_one", ring_allgather, at(0, 1, 0, srcoff=-1), where="gpu 0 tb 1 step 0"),
    Case("buffer-bounds", "last_cells", lambda: ring_allgather(3, 2), at(0, 1, 0, dstoff=5), where="gpu 0 tb 1 step 0"),
    Case("buffer-bounds", "rrc_is_checked_too", ring_reducescatter, at(0, 0, 2, srcoff=3), where="gpu 0 tb 0 step 2"),
    Case("buffer-bounds", "buffer_declared_unused", ring_allreduce, gpu(0, i_chunks=0), where="gpu 0 tb 0 step 0"),
    Case("offset-limit", "int16", lambda: make_file("allreduce", 2, 32800, (32800, 32800, 0)),
         lambda file: add(file, 0, -1, -1, [step("cpy", "i32790", "o32790")]), where="gpu 0 tb 0 step 0"),
    Case("fused-operation", "rccl", ring_allgather, runtime=RCCL, where="gpu 0 tb 0 step 1"),
    Case("nop-without-dependency", "nop", ring_allgather, inserted(0, 1, 0, step("nop", "i-1", "o-1", 0)),
         where="gpu 0 tb 1 step 0"),
    Case("trailing-nop", "nop", pair_allreduce, inserted(0, 2, 3, nop((0, 1))), where="gpu 0 tb 2 step 3"),
    Case("dependency-chain", "free_step", pair_allreduce, at(0, 2, 2, depid=-1, deps=-1), where="gpu 0 tb 2 step 2"),
    Case("dependency-target", "no_such_threadblock", pair_allreduce, at(0, 2, 2, depid=3), where="gpu 0 tb 2 step 2"),
    Case("dependency-target", "no_such_step", pair_allreduce, at(0, 2, 2, deps=2), where="gpu 0 tb 2 step 2"),
    Case("dependency-target", "minus_two", pair_allreduce, at(0, 2, 0, depid=-2), where="gpu 0 tb 2 step 0"),
    Case("dependency-on-nop", "nop", pair_allreduce, at(0, 0, 0, depid=2, deps=1), where="gpu 0 tb 0 step 0"),
    Case("dependency-unflagged", "hasdep_0", pair_allreduce, at(0, 1, 1, hasdep=0), where="gpu 0 tb 2 step 2"),
    Case("dependency-threadblock", "128", pair_allreduce, both(lambda file: many_threadblocks(file, 130),
         at(0, 2, 2, depid=128, deps=0)), where="gpu 0 tb 2 step 2"),
    Case("dependency-count", "LL", lambda: many_waits(31), algo(nthreads=32), runtime=LEGACY, where="gpu 1 tb 2 step 33"),
    Case("dependency-count", "Simple", lambda: many_waits(63, proto="Simple"), algo(nthreads=32), runtime=LEGACY),
    Case("reduce-chain-length", "16", lambda: sum_of_parts(16), where="gpu 0 tb 1 step 1"),
    Case("reduce-chain-length", "17_are_cut_after_16", lambda: sum_of_parts(17), where="gpu 0 tb 1 step 1"),
    Case("reduce-chain-count", "2_then_1", lambda: pairs_allreduce(4), both(algo(nchunksperloop=8),
         *(gpu(r, i_chunks=8, s_chunks=6) for r in range(4)), at(0, 0, 3, cnt=2)), where="gpu 0 tb 0 step 2"),
    Case("reduce-chain-nop", "swallowed", pairs_allreduce, inserted(0, 0, 3, nop((1, 1))), where="gpu 0 tb 0 step 3"),
]  # fmt: skip

RUN_CASES = [
    Case("deadlock", "everybody_receives_first", ring_allgather, lambda file: [
        gpu.blocks[0].steps.insert(0, gpu.blocks[0].steps.pop()) for gpu in file.gpus]),
    Case("deadlock", "flags_in_a_circle", pair_allreduce, both(at(0, 2, 0, hasdep=1), at(0, 0, 0, depid=2, deps=2),
         at(0, 2, 2, hasdep=1))),
    Case("deadlock", "own_later_step", pair_allreduce, both(at(0, 2, 0, depid=2, deps=2), at(0, 2, 2, hasdep=1)),
         where="gpu 0 tb 2 step 0"),
    Case("deadlock", "flag_is_never_raised", pair_allreduce, at(0, 1, 1, hasdep=0), where="gpu 0 tb 2 step 2"),
    Case("deadlock", "count_shifted_by_free_nop", pair_allreduce,
         inserted(0, 0, 0, step("nop", "i-1", "o-1", 0)), lambda text: text.replace('depid="0" deps="1"', 'depid="0" deps="2"', 1)),
    Case("fifo-deadlock", "third_message_in_simple", lambda: both_send_first(3, proto="Simple"), where="gpu 0 tb 0 step 2"),
    Case("fifo-deadlock", "ninth_message_in_LL", lambda: both_send_first(9), where="gpu 0 tb 0 step 8"),
    Case("max-bytes-unsafe", "large", lambda: both_send_first(1, 4, proto="Simple", maxBytes=8 * (2097152 // 2) + 1)),
    Case("max-bytes-unsafe", "unlimited", lambda: both_send_first(1, 4, proto="Simple", maxBytes=0)),
    Case("max-bytes-unsafe", "exclusive", lambda: both_send_first(1, 4, proto="Simple", maxBytes=8 * (2097152 // 2) + 2),
         runtime=LEGACY),
    Case("unwritten-read", "scratch", pair_allreduce, at(0, 1, 1, dstoff=0), where="gpu 0 tb 2 step 2"),
    Case("unwritten-read", "output", ring_allgather, at(0, 0, 0, srcbuf="o"), where="gpu 0 tb 0 step 0"),
    Case("unwritten-read", "a_non_roots_cell_in_place", chain_broadcast, both(algo(outofplace=0),
         inserted(1, 0, 0, step("cpy", "o0", "o1"))), where="gpu 1 tb 0 step 0"),
    Case("mixed-sum", "other_chunk", pair_allreduce, swapped_halves, where="gpu 0 tb 2 step 2"),
    Case("double-counting", "own_part_twice", pair_allreduce, at(0, 2, 2, srcbuf="i"), where="gpu 0 tb 2 step 2"),
    Case("double-counting", "copied_parts", lambda: sum_of_parts(2), where="gpu 0 tb 1 step 2"),
    Case("overlapping-cells", "shifted_copy", lambda: ring_allgather(3, 2), both(
        inserted(0, 0, 3, step("cpy", "o2", "o3", 2))), where="gpu 0 tb 0 step 3"),
    Case("overlapping-cells", "in_place_only", lambda: direct_scatter(2), both(lambda file: file.gpus[0].attributes.update(
        s_chunks=0), at(0, 1, 0, srcoff=1)), where="gpu 0 tb 1 step 0"),
    Case("wrong-result", "lost_copy", ring_allgather, at(0, 1, 0, dstoff=1), where="gpu 0"),
    Case("wrong-result", "two_parts_swapped", direct_alltoall, both(at(0, 1, 1, dstoff=2), at(0, 2, 1, dstoff=1)), where="gpu 0"),
    Case("wrong-result", "not_for_out_of_place", pairs_allreduce, algo(outofplace=1), where="gpu 0"),
    Case("wrong-result", "sum_of_all_but_one", chain_reduce, at(2, 0, 0, type="rcs", dstbuf="o"), where="gpu 0"),
    Case("null-buffer", "output_of_non_root", chain_reduce, inserted(1, 0, 0, step("cpy", "i0", "o0")),
         where="gpu 1 tb 0 step 0"),
    Case("null-buffer", "output_in_gather", direct_gather, both(gpu(1, o_chunks=6), inserted(1, 0, 0, step("cpy", "i0", "o0"))),
         where="gpu 1 tb 0 step 0"),
    Case("null-buffer", "input_of_non_root", chain_broadcast, inserted(1, 0, 0, step("cpy", "i0", "o0")),
         where="gpu 1 tb 0 step 0"),
    Case("null-buffer", "input_in_scatter", direct_scatter, both(gpu(1, i_chunks=6), inserted(1, 0, 0, step("cpy", "i0", "o0"))),
         where="gpu 1 tb 0 step 0"),
    Case("input-overwritten", "receive", ring_allreduce, at(0, 0, 6, dstbuf="i"), where="gpu 0 tb 0 step 6"),
    Case("wrong-root", "other", chain_broadcast, wanted={"root": 1}),
    Case("wrong-root", "outside", direct_gather, wanted={"root": 7}),
    Case("race", "dependency_lost", pair_allreduce, both(at(0, 2, 2, depid=0, deps=1), without(0, 2, 1)), where="gpu 0 tb 2 step 1"),
    Case("race", "late_copy", pair_allreduce, late_copy),
    Case("race", "write_after_read", pairs_allreduce, at(0, 2, 2, depid=-1, deps=-1)),
    Case("race", "only_in_place", split_alltoall, algo(inplace=1)),
]  # fmt: skip

CASES = [*TEXT_CASES, *ALGO_CASES, *GPU_CASES, *STEP_CASES, *RUN_CASES]


@pytest.mark.parametrize("case", CASES, ids=[f"{case.rule}:{case.name}" for case in CASES])
def test_every_mistake_is_named(case: Case) -> None:
    file = case.make()
    case.change(file)
    verdict = verify_program(case.edit(file.text()), case.runtime, **case.wanted)
    found = [violation for violation in verdict.violations if violation.rule == case.rule]
    assert found, [str(violation) for violation in verdict.violations]
    if case.where is not None:
        assert case.where in {violation.where for violation in found}, found


@pytest.mark.parametrize("runtime", [EXECUTOR, RCCL, LEGACY], ids=lambda runtime: runtime.name)
def test_a_negative_size_is_objected_to_for_what_it_is_and_nothing_else(runtime: Runtime) -> None:
    for name in ("minBytes", "maxBytes"):
        file = direct_alltoall()
        file.attributes[name] = -3
        (found,) = verify_program(file.text(), runtime).violations
        assert found.what.startswith(f"{name}=-3 is negative, which legacy MSCCL refuses and other runtimes take")


@pytest.mark.parametrize(("protocol", "waits"), [("LL", 30), ("Simple", 62)])
def test_an_operation_of_the_legacy_runtime_may_wait_for_as_many_steps_as_it_has_threads(
    protocol: str, waits: int
) -> None:
    """Its own dependency and another one are those of the sum; Simple has a warp more than nthreads."""
    for nthreads in (32, 64):
        file = many_waits(waits, proto=protocol, nthreads=nthreads)
        assert verify_program(file.text(), LEGACY).violations == ()
    assert verify_program(many_waits(waits, proto=protocol).text(), LEGACY).violations == ()


@pytest.mark.parametrize("nthreads", [32, 256, 512, 544])
def test_copying_threads_of_the_legacy_runtime_divide_a_slot(nthreads: int) -> None:
    """What is more than 512 is not used."""
    file = ring_allgather()
    file.attributes.update(proto="Simple", nthreads=nthreads)
    assert verify_program(file.text(), LEGACY).violations == ()


def test_the_legacy_runtime_counts_up_to_the_largest_int() -> None:
    file = ring_allgather()
    file.attributes["maxBytes"] = 1 << 31
    assert verify_program(file.text(), LEGACY).violations == ()
    file.attributes["maxBytes"] = (1 << 31) + 1
    (found,) = verify_program(file.text(), LEGACY).violations
    assert found.what.endswith("which ends at 2147483647; write at most 2147483648")


def test_a_chunk_limit_of_the_verifier_itself_makes_a_file_neither_right_nor_wrong() -> None:
    file = make_file("allreduce", 260, 16384, (16384, 16384, 0))
    for rank in range(260):
        add(file, rank, -1, -1, [step("cpy", "i0", "o0")])
    verdict = verify_program(file.text(), EXECUTOR)
    assert verdict.violations == ()
    assert [feature.feature for feature in verdict.unsupported] == ["size"]


def test_every_rule_has_a_broken_file() -> None:
    folder = Path(taccl_py.verify.msccl.__file__).parent
    rules = set()
    # Rules of directories and demands have theirs in test_directory.py and test_demand.py.
    for module in sorted(set(folder.glob("*.py")) - {folder / "directory.py", folder / "demand.py"}):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in ("violation", "_stop", "_object", "_Unreadable") and len(node.args) > 1:
                    rules |= {node.args[1].value} if isinstance(node.args[1], ast.Constant) else set()
    assert len(rules) > 70
    assert rules - {case.rule for case in CASES} == set()
