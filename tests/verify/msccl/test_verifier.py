"""Files that are right are accepted, and described truly; harmless oddities are remarked on and not rejected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from taccl_py.collective import Kind
from taccl_py.runtimes import EXECUTOR, LEGACY, RCCL, RUNTIMES, Runtime
from taccl_py.verify.msccl import verify_program
from tests.verify.msccl.brute_force import find_bad_run
from tests.verify.msccl.files import (
    RIGHT_FILES,
    Block,
    File,
    add,
    chain_broadcast,
    direct_alltoall,
    direct_gather,
    make_file,
    pair_allreduce,
    pairs_allreduce,
    ring_allgather,
    ring_allreduce,
    ring_reducescatter,
    step,
)
from tests.verify.msccl.test_broken_files import both_send_first, long_exchange, split_alltoall


@pytest.mark.parametrize("name", RIGHT_FILES)
def test_right_files_are_accepted_and_the_naive_runner_agrees(name: str) -> None:
    file = RIGHT_FILES[name]()
    verdict = verify_program(file.text(), EXECUTOR)
    assert verdict.violations == ()
    assert verdict.facts is not None
    assert find_bad_run(file, verdict.facts.root, 3) is None


@pytest.mark.parametrize("runtime", RUNTIMES.values(), ids=RUNTIMES)
@pytest.mark.parametrize("make", [pair_allreduce, pairs_allreduce, direct_alltoall])
def test_a_file_without_fused_steps_is_right_everywhere(make: Callable[[], File], runtime: object) -> None:
    assert verify_program(make().text(), runtime).violations == ()  # type: ignore[arg-type]


def test_facts_say_what_the_file_is() -> None:
    facts = verify_program(pairs_allreduce(4).text(), EXECUTOR).facts
    assert facts is not None
    assert (facts.name, facts.kind, facts.num_ranks, facts.num_chunks_per_loop) == ("test", Kind.ALLREDUCE, 4, 4)
    assert (facts.protocol, facts.num_channels, facts.in_place, facts.out_of_place) == ("LL", 2, True, False)
    assert (facts.min_bytes, facts.max_bytes, facts.safe_max_bytes, facts.root) == (0, 1 << 20, None, None)
    assert (facts.max_threadblocks, facts.max_steps, facts.scratch_chunks, facts.fifo_depth) == (4, 5, 3, 1)


def test_the_largest_size_is_inclusive_in_the_facts_of_every_runtime() -> None:
    text = pairs_allreduce().text()
    found = {runtime.name: verify_program(text, runtime).facts for runtime in RUNTIMES.values()}
    assert {name: facts.max_bytes for name, facts in found.items() if facts} == {
        "executor": 1 << 20, "rccl": 1 << 20, "legacy": (1 << 20) - 1
    }  # fmt: skip


@pytest.mark.parametrize("root", range(4))
@pytest.mark.parametrize("name", ["broadcast", "reduce", "gather", "scatter"])
def test_the_root_is_found_for_every_placement(name: str, root: int) -> None:
    from tests.verify.msccl import files

    shape = "direct" if name in ("gather", "scatter") else "chain"
    file = getattr(files, f"{shape}_{name}")(4, root)
    for in_place, out_of_place in ((1, 1), (1, 0), (0, 1)):
        file.attributes.update(inplace=in_place, outofplace=out_of_place)
        verdict = verify_program(file.text(), EXECUTOR, root=root)
        assert verdict.violations == ()
        assert verdict.facts is not None
        assert verdict.facts.root == root


@pytest.mark.parametrize("root", range(4))
def test_an_asked_root_wins_when_the_program_works_for_several(root: int) -> None:
    """An AllReduce in place is a Reduce to everybody."""
    file = pairs_allreduce(4)
    file.attributes["coll"] = "reduce"
    verdict = verify_program(file.text(), EXECUTOR, root=root)
    assert verdict.violations == ()
    assert verdict.facts is not None
    assert verdict.facts.root == root


def test_a_value_that_was_never_written_is_objected_to_once_however_far_it_goes() -> None:
    file = ring_allgather(4)
    file.step(0, 0, 0)["srcbuf"] = "o"
    found = verify_program(file.text(), EXECUTOR).violations
    assert [violation.where for violation in found if violation.rule == "unwritten-read"] == ["gpu 0 tb 0 step 0"]
    assert {violation.rule for violation in found} == {"unwritten-read", "wrong-result", "race"}


def test_32_senders_may_share_a_channel() -> None:
    def rules(num_peers: int) -> set[str]:
        file = make_file("scatter", num_peers + 1, 1, (0, 1, 0), nchannels=1)
        file.gpus[0].attributes["i_chunks"] = num_peers + 1
        add(file, 0, -1, -1, [step("cpy", "i0", "o0")])
        for peer in range(1, num_peers + 1):
            add(file, 0, peer, -1, [step("s", f"i{peer}")])
            add(file, peer, -1, 0, [step("r")])
        return {violation.rule for violation in verify_program(file.text(), EXECUTOR).violations}

    assert rules(32) == set()
    assert rules(33) == {"peers-per-channel"}


def test_a_known_queue_need_is_found() -> None:
    depths = {
        messages: verify_program(both_send_first(messages).text(), EXECUTOR).facts for messages in (1, 2, 5, 8, 9)
    }
    assert {messages: facts.fifo_depth for messages, facts in depths.items() if facts} == {1: 1, 2: 2, 5: 5, 8: 8, 9: 9}


def test_the_safe_size_follows_from_the_chunks_that_must_fit_into_one_operation() -> None:
    """One message of 4 chunks each way, sent first: with 2 slots of Simple, 2 chunks must go into one operation."""
    file = both_send_first(1, 4, proto="Simple", maxBytes=8 * (2097152 // 2))
    verdict = verify_program(file.text(), EXECUTOR)
    assert verdict.violations == ()
    assert verdict.facts is not None
    assert verdict.facts.safe_max_bytes == 8 * (2097152 // 2)
    assert verdict.facts.fifo_depth == 4


@pytest.mark.parametrize("cnt", range(3, 13))
def test_every_count_has_its_own_safe_size(cnt: int) -> None:
    facts = verify_program(both_send_first(1, cnt, proto="Simple").text(), EXECUTOR).facts
    assert facts is not None
    assert facts.safe_max_bytes == 2 * cnt * (2097152 // -(-cnt // 2))


def test_the_safe_size_depends_on_the_protocol_and_the_runtime() -> None:
    file = both_send_first(3, 5, maxBytes=3000)  # 3 messages of 5 chunks; 8 slots hold 2 operations of each
    sizes = {}
    for proto in ("LL", "LL128"):
        file.attributes["proto"] = proto
        for runtime in (EXECUTOR, RCCL):
            facts = verify_program(file.text(), runtime).facts
            assert facts is not None
            sizes[proto, runtime.name] = facts.safe_max_bytes
    assert sizes == {
        ("LL", "executor"): 30 * (32768 // 3), ("LL", "rccl"): 30 * (16384 // 3),
        ("LL128", "executor"): 30 * (576000 // 3), ("LL128", "rccl"): 30 * (50176 // 3),
    }  # fmt: skip


def test_an_out_of_place_file_need_not_be_right_in_place() -> None:
    assert verify_program(split_alltoall().text(), EXECUTOR).violations == ()


def test_a_copy_of_cells_onto_themselves_disturbs_nobody() -> None:
    """In place the ring's local copy has one place as source and destination, while another threadblock sends it."""
    assert verify_program(ring_allgather(3, 2).text(), EXECUTOR).violations == ()


def test_an_in_place_file_may_leave_the_other_buffer_undeclared() -> None:
    file = ring_allgather()
    file.attributes["outofplace"] = 0
    for rank, gpu in enumerate(file.gpus):
        gpu.attributes["i_chunks"] = 0
        gpu.blocks[0].steps[0].update(srcbuf="o", srcoff=rank)
        gpu.blocks[1].steps[0].update(srcbuf="o", srcoff=rank)
    assert verify_program(file.text(), EXECUTOR).violations == ()


def test_a_dependency_on_a_later_flag_is_as_good() -> None:
    """Flags are compared with >=: a wait for step 1 ends with step 2's flag when only that raises one."""
    file = pair_allreduce()
    block = file.gpus[0].blocks[1]
    block.steps[1]["hasdep"] = 0
    block.steps.append(step("cpy", "i0", "o0", flag=1))
    rules = {violation.rule for violation in verify_program(file.text(), EXECUTOR).violations}
    assert rules == {"dependency-unflagged", "race"}  # the extra copy races, and nothing hangs


def test_messages_order_accesses_across_gpus() -> None:
    """Rank 0's second threadblock writes what the first sent, after a round trip through rank 1; no flag is needed."""
    file = make_file("allgather", 2, 2, (1, 2, 1), outofplace=0)
    add(file, 0, 1, -1, [step("cpy", "i0", "s0"), step("s", "s0")])
    add(file, 0, -1, 1, [step("r", dst="s0"), step("cpy", "s0", "o1")])
    add(file, 1, 0, 0, [step("r", dst="o0"), step("s", "o1")])
    assert verify_program(file.text(), EXECUTOR).violations == ()
    file.gpus[1].blocks[0].steps.reverse()
    assert {violation.rule for violation in verify_program(file.text(), EXECUTOR).violations} == {"race"}


def test_room_in_a_queue_orders_nothing() -> None:
    """That the ninth message found room says that the first was read, and still promises nothing about memory."""
    file = long_exchange(2)
    file.attributes["nchannels"] = 1
    for rank in range(2):
        file.gpus[rank].attributes["s_chunks"] = 1
    file.gpus[0].blocks[0].steps = [step("s") for _ in range(9)] + [step("cpy", "i0", "s0")]
    file.gpus[0].blocks[0].attributes["recv"] = -1
    file.gpus[1].blocks[0].steps = [step("r", dst="o0") for _ in range(9)]
    file.gpus[1].blocks[0].attributes["send"] = -1
    add(file, 1, 0, -1, [step("s")])
    add(file, 0, -1, 1, [step("r", dst="s0"), step("cpy", "s0", "o1")])
    assert {violation.rule for violation in verify_program(file.text(), EXECUTOR).violations} == {"race"}


def test_a_long_chain_of_reductions_is_fine_when_it_is_cut_in_time() -> None:
    """20 parts: the chain is broken by a flag after 10."""
    file = make_file("allreduce", 20, 20, (20, 0, 19), outofplace=0, nchannels=1)
    whole = pairs_allreduce(20)
    file.gpus = whole.gpus
    assert {v.rule for v in verify_program(file.text(), EXECUTOR).violations} == {"reduce-chain-length"}
    for gpu in file.gpus:
        reductions = [s for s in gpu.blocks[0].steps if s["type"] == "re"]
        reductions[9]["hasdep"] = 1
    assert verify_program(file.text(), EXECUTOR).violations == ()


def test_rccl_may_fuse_long_chains() -> None:
    verdict = verify_program(pairs_allreduce(20).text(), RCCL)
    assert verdict.violations == ()
    assert any("chain of 16 reductions" in note for note in verdict.notes)  # the sixteenth ends a chain


def overwriting_alltoall(**changes: object) -> File:
    """In place: what the send of chunk 1 - rank reads is overwritten by the receive of another threadblock, which waits for its flag."""
    file = make_file("alltoall", 2, 2, (2, 2, 0), inplace=1, outofplace=1, **changes)
    for rank in range(2):
        add(file, rank, 1 - rank, -1, [step("s", f"i{1 - rank}", f"o{rank}", flag=1)])
        add(file, rank, -1, 1 - rank, [step("r", f"i{1 - rank}", f"o{1 - rank}", after=(0, 0))])
        add(file, rank, -1, -1, [step("cpy", f"i{rank}", f"o{rank}")])
    return file


@pytest.mark.parametrize(
    ("runtime", "protocol", "early"),
    [(RCCL, "LL", True), (RCCL, "LL128", False), (RCCL, "Simple", False), (EXECUTOR, "LL", False)],
)
def test_flags_of_ll_sends_come_early_in_rccl(runtime: Runtime, protocol: str, early: bool) -> None:
    verdict = verify_program(overwriting_alltoall(proto=protocol).text(), runtime)
    assert verdict.violations == ()
    assert verdict.facts is not None
    assert verdict.facts.flags_early is early
    assert any("before all threads have read it" in note for note in verdict.notes) is early


@pytest.mark.parametrize("copies_first", [True, False])
def test_early_flags_of_sends_are_seen_through_other_steps(copies_first: bool) -> None:
    """The overwriting step waits for nothing itself, or for a threadblock that waited for the send."""
    file = overwriting_alltoall(proto="LL")
    for rank, gpu in enumerate(file.gpus):
        gpu.attributes["s_chunks"] = 1
        between = step("cpy", f"i{rank}", "s0", after=(0, 0), flag=1)
        if copies_first:
            gpu.blocks[1].steps = [between, step("r", f"i{1 - rank}", f"o{1 - rank}")]
        else:
            gpu.blocks[2].steps.insert(0, between)
            gpu.blocks[1].steps = [step("r", f"i{1 - rank}", f"o{1 - rank}", after=(2, 0))]
    for block in (block for gpu in file.gpus for block in gpu.blocks):
        for number, each in enumerate(block.steps):
            each["s"] = number
    verdict = verify_program(file.text(), RCCL)
    assert verdict.violations == ()
    assert verdict.facts is not None
    assert verdict.facts.flags_early


def test_what_the_answer_to_a_send_overwrites_was_sent() -> None:
    """The peer answers what it was sent, so whoever takes the answer knows that the send has read its source."""
    file = make_file("allreduce", 2, 1, (1, 1, 1), inplace=1, outofplace=0, proto="LL")
    add(file, 0, 1, -1, [step("s", "i0", "o0", flag=1)])
    add(file, 0, -1, 1, [step("r", "i0", "o0", after=(0, 0))])
    add(file, 1, 0, 0, [step("r", "i0", "s0"), step("re", "s0", "o0"), step("s", "o0", "o0")])
    verdict = verify_program(file.text(), RCCL)
    assert verdict.violations == ()
    assert verdict.facts is not None
    assert not verdict.facts.flags_early


def test_waiting_for_a_later_step_is_no_waiting_for_a_send() -> None:
    file = overwriting_alltoall(proto="LL")
    for gpu in file.gpus:
        send, receive = gpu.blocks[0].steps, gpu.blocks[1].steps
        send[0]["hasdep"] = 0
        send.append(step("cpy", "i0", "i0", flag=1))
        receive[0]["deps"] = 1
    verdict = verify_program(file.text(), RCCL)
    assert verdict.facts is not None
    assert not verdict.facts.flags_early


def test_a_v100_has_fewer_threadblocks_than_an_a100() -> None:
    file = pair_allreduce()
    while len(file.gpus[0].blocks) < 81:
        block = {"id": len(file.gpus[0].blocks), "send": -1, "recv": -1, "chan": 0}
        file.gpus[0].blocks.append(Block(block, [step("cpy", "i0", "i0")]))
    assert any("hang on a V100" in note for note in verify_program(file.text(), EXECUTOR).notes)
    del file.gpus[0].blocks[-1]
    assert not any("V100" in note for note in verify_program(file.text(), EXECUTOR).notes)


def test_other_step_limits_can_be_verified() -> None:
    file = long_exchange(120)
    assert {v.rule for v in verify_program(file.text(), EXECUTOR).violations} == {"step-limit"}
    assert verify_program(file.text(), replace(EXECUTOR, max_steps=256)).violations == ()


@pytest.mark.parametrize("kind", [Kind.GATHER, Kind.SCATTER])
def test_a_legacy_custom_file_counts_the_longer_buffer(kind: Kind) -> None:
    """The legacy runtime insists on i_chunks and o_chunks of 0 or nchunksperloop there."""
    from tests.verify.msccl.files import direct_scatter

    file = direct_gather() if kind is Kind.GATHER else direct_scatter()
    file.attributes.update(coll="custom", nchunksperloop=6, inplace=0)
    for gpu in file.gpus:
        gpu.attributes.update(i_chunks=6, o_chunks=6)
    assert verify_program(file.text(), LEGACY, kind=kind).violations == ()
    file.step(1, 0, 0).update(srcoff=4, dstoff=4)  # inside the declared length and beyond the true one
    assert "buffer-bounds" in {
        violation.rule for violation in verify_program(file.text(), LEGACY, kind=kind).violations
    }


def test_a_legacy_custom_file_of_an_unknown_collective_is_run_without_comparing_results() -> None:
    file = ring_allreduce()
    file.attributes.update(coll="custom", inplace=0)
    verdict = verify_program(file.text(), LEGACY)
    assert verdict.violations == ()
    assert verdict.facts is not None
    assert verdict.facts.kind is None
    assert any("custom" in note for note in verdict.notes)
    file.step(0, 0, 0)["srcbuf"] = "o"
    assert {violation.rule for violation in verify_program(file.text(), LEGACY).violations} == {"unwritten-read"}


def test_nothing_is_said_of_data_in_place_where_nobody_knows_the_collective() -> None:
    """In place a gather's input lies at another offset of the output on every rank, and not at its beginning."""
    file = direct_gather()
    file.attributes.update(coll="custom", nchunksperloop=6, inplace=1)
    for gpu in file.gpus:
        gpu.attributes.update(i_chunks=6, o_chunks=6)
    assert verify_program(file.text(), LEGACY, kind=Kind.GATHER).violations == ()
    verdict = verify_program(file.text(), LEGACY)
    assert verdict.violations == ()
    assert any("name the collective" in note for note in verdict.notes)


def test_the_legacy_runtime_reads_one_placement_only() -> None:
    file = ring_reducescatter()
    file.attributes["coll"] = "reduce_scatter"
    facts = verify_program(file.text(), LEGACY).facts
    assert facts is not None
    assert (facts.in_place, facts.out_of_place) == (True, False)
    file.attributes["inplace"] = 0
    facts = verify_program(file.text(), LEGACY).facts
    assert facts is not None
    assert (facts.in_place, facts.out_of_place) == (False, True)


def test_the_legacy_runtime_has_defaults_for_sizes() -> None:
    file = ring_allgather()
    for name in ("minBytes", "maxBytes", "outofplace"):
        del file.attributes[name]
    verdict = verify_program(file.text(), LEGACY)
    assert verdict.violations == ()
    assert verdict.facts is not None
    assert verdict.facts.max_bytes == (1 << 27) - 1


HARMLESS: dict[str, Callable[[str], str]] = {
    "comments": lambda text: "<!-- by hand -->\n" + text.replace("</gpu>", "<!--x--></gpu><!-- > < -->"),
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
    "two blanks": lambda text: text.replace(" coll=", "  coll="),
    "blank before the end": lambda text: text.replace("/>", " />"),
    "unknown attributes": lambda text: text.replace("<tb ", '<tb color="red" '),
    "unknown elements": lambda text: text.replace("<tb", '<copy i="0"/><x><y></z></x><tb', 1),
    "steps with end tags": lambda text: text.replace("/>", "></step>"),
    "an attribute twice": lambda text: text.replace(' hasdep="0"', ' hasdep="0" hasdep="7"'),
    "inplace 3": lambda text: text.replace('outofplace="1"', 'outofplace="3"'),
    "nop with a count": lambda text: text.replace('dstoff="-1" cnt="0"', 'dstoff="-1" cnt="5"'),
    "flag of a nop": lambda text: text.replace('deps="1" hasdep="0"', 'deps="1" hasdep="1"', 1),
    "flags nobody waits for": lambda text: text.replace('deps="-1" hasdep="0"', 'deps="-1" hasdep="1"'),
    "deps without depid": lambda text: text.replace('deps="-1"', 'deps="3"'),
    "unused addresses": lambda text: text.replace('type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0"',
                                                  'type="s" srcbuf="i" srcoff="0" dstbuf="s" dstoff="99"'),
    "no name": lambda text: text.replace(' name="test"', ""),
    "no upper limit": lambda text: text.replace('maxBytes="1048576"', 'maxBytes="0"'),
    "no final line end": lambda text: text.rstrip(),
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_oddities_are_no_mistakes(name: str) -> None:
    text = pair_allreduce().text()
    changed = HARMLESS[name](text)
    assert changed != text
    assert verify_program(changed, EXECUTOR).violations == ()


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("two blanks", "without a name"),
        ("unknown elements", "<copy> has no meaning"),
        ("an attribute twice", "stands twice"),
        ("flags nobody waits for", "nobody waits for them"),
        ("no upper limit", "no limit"),
    ],
)
def test_harmless_oddities_are_remarked_on(name: str, word: str) -> None:
    notes = verify_program(HARMLESS[name](pair_allreduce().text()), EXECUTOR).notes
    assert any(word in note for note in notes), notes


def test_errors_are_sorted_and_the_same_every_time() -> None:
    file = ring_allreduce()
    file.step(0, 0, 1)["srcoff"] = 0
    file.step(2, 0, 3)["dstoff"] = 1
    verdicts = [verify_program(file.text(), RCCL) for _ in range(3)]
    assert verdicts[0] == verdicts[1] == verdicts[2]
    assert list(verdicts[0].violations) == sorted(set(verdicts[0].violations))
    assert len(verdicts[0].violations) > 10


def test_a_deadlock_names_the_cycle() -> None:
    file = both_send_first(3, proto="Simple")
    (found,) = verify_program(file.text(), EXECUTOR).violations
    assert found.where == "gpu 0 tb 0 step 2"
    assert "gpu 1 tb 0 step 2 waits for room towards gpu 0" in found.what
    assert "it waits for room towards gpu 1" in found.what


def test_what_is_wrong_in_one_placement_says_which() -> None:
    file = pairs_allreduce()
    file.attributes["outofplace"] = 1
    found = verify_program(file.text(), EXECUTOR).violations
    assert found
    assert all(violation.what.startswith("out of place, ") for violation in found)


def test_a_broken_broadcast_still_has_the_root_of_most_of_its_result() -> None:
    file = chain_broadcast(4, 2)
    file.step(1, 0, 0)["dstbuf"] = "s"
    file.gpus[1].attributes["s_chunks"] = 2
    verdict = verify_program(file.text(), EXECUTOR)
    assert {violation.rule for violation in verdict.violations} == {"wrong-result"}
    assert verdict.facts is not None
    assert verdict.facts.root == 2


def test_a_gap_in_the_threadblocks_is_told_once_and_not_by_who_waits_for_what_is_missing() -> None:
    file = pair_allreduce()
    file.gpus[0].blocks[1].attributes["id"] = 3
    found = verify_program(file.text(), EXECUTOR).violations
    assert [(one.where, one.rule) for one in found] == [("gpu 0", "threadblock-ids")]
    file.step(0, 2, 2).update(depid=4)
    found = verify_program(file.text(), EXECUTOR).violations
    assert [one.what for one in found if one.rule == "dependency-target"] == [
        "depid=4: the last threadblock of the GPU is 3"
    ]


def test_steps_that_are_numbered_wrongly_are_told_and_not_who_waits_for_the_right_number() -> None:
    file = pair_allreduce()
    file.step(0, 1, 1)["s"] = 2
    rules = {one.rule for one in verify_program(file.text(), EXECUTOR).violations}
    assert "step-number" in rules
    assert "dependency-target" not in rules


@pytest.mark.parametrize(("runtime", "told"), [(EXECUTOR, True), (RCCL, False)])
def test_what_no_call_of_the_library_selects_is_noted(runtime: Runtime, told: bool) -> None:
    file = make_file("gather", 2, 1, (1, 2, 0), inplace=0, outofplace=1)
    assert any("has no call for gather" in note for note in verify_program(file.text(), runtime).notes) is told
