"""Random damage to right files: the verifier never fails, and objects whenever a naive runner sees something go wrong."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from taccl_py.runtimes import EXECUTOR, LEGACY, RCCL
from taccl_py.verify.msccl import verify_program
from tests.verify.msccl.brute_force import find_bad_run
from tests.verify.msccl.files import RIGHT_FILES, Attributes, Block, File, add, make_file, step

OFTEN = settings(max_examples=400)
SELDOM = settings(max_examples=100)
NAMES = sorted(RIGHT_FILES)


def known_root(name: str) -> int:
    return int(name[-1]) if name[-1].isdigit() else 0


def pick_block(file: File, data: st.DataObject) -> Block:
    return data.draw(st.sampled_from([block for gpu in file.gpus for block in gpu.blocks]))


def pick_step(file: File, data: st.DataObject) -> Attributes:
    return data.draw(st.sampled_from([step for gpu in file.gpus for block in gpu.blocks for step in block.steps]))


def drop_step(file: File, data: st.DataObject) -> None:
    block = pick_block(file, data)
    if block.steps:
        block.steps.pop(data.draw(st.integers(0, len(block.steps) - 1)))


def swap_steps(file: File, data: st.DataObject) -> None:
    block = pick_block(file, data)
    if len(block.steps) > 1:
        first = data.draw(st.integers(0, len(block.steps) - 2))
        block.steps[first : first + 2] = block.steps[first : first + 2][::-1]


def repeat_step(file: File, data: st.DataObject) -> None:
    block = pick_block(file, data)
    if block.steps:
        index = data.draw(st.integers(0, len(block.steps) - 1))
        block.steps.insert(index, dict(block.steps[index]))


def change_offset(file: File, data: st.DataObject) -> None:
    pick_step(file, data)[data.draw(st.sampled_from(["srcoff", "dstoff"]))] = data.draw(st.integers(-1, 5))


def change_buffer(file: File, data: st.DataObject) -> None:
    pick_step(file, data)[data.draw(st.sampled_from(["srcbuf", "dstbuf"]))] = data.draw(st.sampled_from("ios"))


def change_count(file: File, data: st.DataObject) -> None:
    pick_step(file, data)["cnt"] = data.draw(st.integers(0, 4))


def change_type(file: File, data: st.DataObject) -> None:
    kinds = ["s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "nop"]
    pick_step(file, data)["type"] = data.draw(st.sampled_from(kinds))


def change_flag(file: File, data: st.DataObject) -> None:
    chosen = pick_step(file, data)
    chosen["hasdep"] = 1 - int(str(chosen["hasdep"]))


def drop_dependency(file: File, data: st.DataObject) -> None:
    waiting = [s for gpu in file.gpus for block in gpu.blocks for s in block.steps if s["depid"] != -1]
    if waiting:
        data.draw(st.sampled_from(waiting)).update(depid=-1, deps=-1)


def change_dependency(file: File, data: st.DataObject) -> None:
    pick_step(file, data).update(depid=data.draw(st.integers(-1, 3)), deps=data.draw(st.integers(-1, 5)))


def change_peer(file: File, data: st.DataObject) -> None:
    pick_block(file, data).attributes[data.draw(st.sampled_from(["send", "recv"]))] = data.draw(st.integers(-1, 3))


def change_channel(file: File, data: st.DataObject) -> None:
    pick_block(file, data).attributes["chan"] = data.draw(st.integers(0, 1))


def change_placement(file: File, data: st.DataObject) -> None:
    in_place, out_of_place = data.draw(st.sampled_from([(0, 1), (1, 0), (1, 1)]))
    file.attributes.update(inplace=in_place, outofplace=out_of_place)


def change_lengths(file: File, data: st.DataObject) -> None:
    gpu = data.draw(st.sampled_from(file.gpus))
    gpu.attributes[data.draw(st.sampled_from(["i_chunks", "o_chunks", "s_chunks"]))] = data.draw(st.integers(0, 6))


def swap_gpus(file: File, data: st.DataObject) -> None:
    first, second = data.draw(st.sampled_from([(0, 1), (1, 0), (0, len(file.gpus) - 1)]))
    file.gpus[first].blocks, file.gpus[second].blocks = file.gpus[second].blocks, file.gpus[first].blocks


MUTATIONS = [
    drop_step, swap_steps, repeat_step, change_offset, change_buffer, change_count, change_type, change_flag,
    drop_dependency, change_dependency, change_peer, change_channel, change_placement, change_lengths, swap_gpus,
]  # fmt: skip


@OFTEN
@given(st.sampled_from(NAMES), st.lists(st.sampled_from(MUTATIONS), min_size=1, max_size=2), st.data())
def test_the_verifier_rejects_every_file_that_can_go_wrong(name: str, mutations: list, data: st.DataObject) -> None:
    file = RIGHT_FILES[name]()
    for mutation in mutations:
        mutation(file, data)
    verdict = verify_program(file.text(), EXECUTOR, root=known_root(name))
    if not verdict.violations:
        assert find_bad_run(file, known_root(name), 4) is None


@SELDOM
@given(st.sampled_from(NAMES), st.sampled_from(MUTATIONS), st.data())
def test_damage_gives_the_same_verdict_twice_and_a_sorted_one(name: str, mutation: object, data: st.DataObject) -> None:
    file = RIGHT_FILES[name]()
    mutation(file, data)  # type: ignore[operator]
    for runtime in (LEGACY, RCCL):
        first, second = verify_program(file.text(), runtime), verify_program(file.text(), runtime)
        assert first == second
        assert list(first.violations) == sorted(set(first.violations))
        assert list(first.notes) == sorted(set(first.notes))


@OFTEN
@example("<algo")
@example("<")
@example("</")
@example("<a b")
@example('<a b="')
@example("<!--")
@example("<algo></algo>")
@example("<algo/>")
@given(st.text(alphabet=" \t\n\r<>/=!-?\"'abcgoltu019\0\ufeffé\ud800", max_size=60))
def test_no_text_breaks_the_verifier(text: str) -> None:
    assert verify_program(text, EXECUTOR).violations


@OFTEN
@given(st.sampled_from(NAMES), st.data())
def test_no_edit_of_a_file_breaks_the_verifier(name: str, data: st.DataObject) -> None:
    text = RIGHT_FILES[name]().text()
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 12))
        new = data.draw(st.text(alphabet=' \t\n<>/="-0123456789xiosrcpenabg', max_size=6))
        text = text[:start] + new + text[start + length :]
    for runtime in (EXECUTOR, LEGACY):
        verify_program(text, runtime)


@OFTEN
@given(st.sampled_from(NAMES), st.data())
def test_no_number_breaks_the_verifier(name: str, data: st.DataObject) -> None:
    file = RIGHT_FILES[name]()
    gpus, blocks = list(file.gpus), [block for gpu in file.gpus for block in gpu.blocks]
    parts = [file.attributes, *(gpu.attributes for gpu in gpus), *(block.attributes for block in blocks)]
    parts += [step for block in blocks for step in block.steps]
    part = data.draw(st.sampled_from(parts))
    key = data.draw(st.sampled_from(sorted(part)))
    numbers = [-(2**70), -(2**31), -2, -1, 0, 1, 2, 3, 71, 72, 127, 128, 1024, 32767, 32768, 2**31 - 1, 2**31, 2**70]
    part[key] = data.draw(st.sampled_from(numbers))
    verify_program(file.text(), EXECUTOR)


@SELDOM
@given(st.integers(2, 5), st.integers(1, 2), st.booleans(), st.data())
def test_random_relayed_allgathers_are_accepted(n: int, per: int, wait_by_nop: bool, data: st.DataObject) -> None:
    """Each share travels to each rank over random ranks that have it; forwarding steps wait for the arrival."""
    file = make_file("allgather", n, n * per, (per, n * per, 0), nchannels=1)
    steps: dict[tuple[int, int, str], list[Attributes]] = {}
    arrival: dict[tuple[int, int], tuple[str, int, int] | None] = {(rank, rank): None for rank in range(n)}
    missing = [(rank, share) for rank in range(n) for share in range(n) if rank != share]
    for rank, share in data.draw(st.permutations(missing)):
        holder = data.draw(st.sampled_from([r for r in range(n) if (r, share) in arrival]))
        came = arrival[holder, share]
        out = steps.setdefault((holder, rank, "send"), [])
        out.append(step("s", f"o{share * per}" if came else "i0", cnt=per))
        out[-1]["came"] = came
        back = steps.setdefault((rank, holder, "recv"), [])
        back.append(step("r", dst=f"o{share * per}", cnt=per))
        arrival[rank, share] = ("recv", holder, len(back) - 1)
    numbers = {key: sum(1 for other in steps if other[0] == key[0] and other < key) for key in steps}
    for (rank, peer, way), chain in sorted(steps.items()):
        for out in chain:
            came = out.pop("came", None)
            if came is not None:
                source = (rank, came[1], "recv")
                steps[source][came[2]]["hasdep"] = 1
                out.update(depid=numbers[source], deps=came[2])
        if wait_by_nop and way == "send" and chain[0]["depid"] != -1:
            chain.insert(0, {**step("nop", "i-1", "o-1", 0), "depid": chain[0]["depid"], "deps": chain[0]["deps"]})
        add(file, rank, peer if way == "send" else -1, peer if way == "recv" else -1, chain)
    for rank in range(n):
        add(file, rank, -1, -1, [step("cpy", "i0", f"o{rank * per}", per)])
    verdict = verify_program(file.text(), EXECUTOR)
    assert verdict.violations == ()
    assert find_bad_run(file, None, 2) is None
