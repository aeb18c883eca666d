"""Files in which ranks do what a few of them do, with other names: there these few, the *roots*, can stand for all.

Rank r's program is an *image* of a root's if a permutation of the ranks, which takes the root to r, makes the one text of the
other: peers are renamed, shards of ranks in the buffers change places, and all else is the same, letter by letter. Shards that one
step moves together must follow each other in the image too. The permutations are read off the text, and must fit together: for
all peers q of a root, the image of what q's root does for its image of rank x is what the image of q does for the image of x, and q
and its image have the same root (so the two sides of every connection agree). Then

* all ranks can go on in step, and whatever order they take instead ends where that ends, as no condition that is once
  fulfilled is ever lost (`taccl_py.verify.msccl.execute`): the program ends with the same queues if the roots' do, with each
  connection that a root fills standing for all its images;
* what rank q holds is the image of what its root holds: a message from q brings the image of what its root sends;
* flags order the accesses of each rank as they order its root's.

Nothing is assumed of who wrote the file, and where anything does not fit, or an error is found, all ranks are verified.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from taccl_py.collective import COMBINING, ROOTED, Buffer, Kind
from taccl_py.runtimes import MAX_OFFSET, MAX_XML_CHILDREN, Runtime
from taccl_py.verify.msccl.findings import Findings
from taccl_py.verify.msccl.geometry import BufferLengths
from taccl_py.verify.msccl.grammar import AlgoElement, Gpu, parse_algorithm
from taccl_py.verify.msccl.operations import KernelProgram, Wires
from taccl_py.verify.msccl.rules import find_geometry
from taccl_py.verify.msccl.semantics import Contents, RunSetting
from taccl_py.verify.msccl.text import read_document

# Files of fewer ranks are verified rank by rank, which takes little time there.
FEWEST_RANKS = 64
# Most ranks that stand for all, and the part of all that they may be.
_MOST_ROOTS, _PART = 64, 0.5

_GPU_END = "  </gpu>\n"
_END = "</algo>\n"
_NUMBER = r'"(?:-1|0|[1-9][0-9]*)"'
_NUMBERS = {name: f"{name}={_NUMBER}" for name in ("s", "srcoff", "dstoff", "cnt", "depid", "deps", "hasdep")}
_STEP = (
    f'      <step {_NUMBERS["s"]} type="[a-z]+" srcbuf="[ios]" {_NUMBERS["srcoff"]} dstbuf="[ios]" {_NUMBERS["dstoff"]}'
    f" {_NUMBERS['cnt']} {_NUMBERS['depid']} {_NUMBERS['deps']} {_NUMBERS['hasdep']}/>\n"
)
_TB = f"    <tb id={_NUMBER} send={_NUMBER} recv={_NUMBER} chan={_NUMBER}>\n(?:{_STEP})*    </tb>\n"
_PLAIN_GPU = re.compile(
    f"  <gpu id={_NUMBER} i_chunks={_NUMBER} o_chunks={_NUMBER} s_chunks={_NUMBER}>\n(?:{_TB})*", re.ASCII
)
# From the number of the value after a name to that after cnt, where a text is cut at double quotes.
_TO_COUNT = {" srcoff=": 6, " dstoff=": 2}

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FileImages:
    """A file in which the first ranks stand for all.

    Attributes
    ----------
    text
        The file without the other ranks.
    to
        ``to[r, x]`` is what rank x is called in the image that is rank r's program.
    root
        The rank of whose program that is the image.
    """

    text: str
    to: IntArray
    root: IntArray

    @cached_property
    def wires(self) -> Wires:
        """Names of the roots' connections."""
        inverse = np.argsort(self.to, axis=1)
        roots = int(self.root.max()) + 1
        return Wires(self.root.tolist(), inverse[:, :roots].tolist())


def find_images(text: str, runtime: Runtime, kind: Kind | None) -> FileImages | None:
    """Find the permutations that make each rank's program of a root's, or return None if there are none or they do not fit together.

    Parameters
    ----------
    text
        Any text.
    runtime, kind
        As for the verifier.
    """
    head, newline, body = text.partition("\n")
    if not (newline and head.startswith("<algo ") and body.endswith(_GPU_END + _END)):
        return None
    parts = body[: -len(_END)].split(_GPU_END)[:-1]
    if not FEWEST_RANKS <= len(parts) <= MAX_XML_CHILDREN or not _PLAIN_GPU.fullmatch(parts[0]):
        return None
    first = _read(_short(head, parts[:1]), runtime)
    findings = Findings()
    geometry = None if first is None else find_geometry(first, runtime, kind, findings)
    if first is None or geometry is None or findings.broken or not _may_have_images(geometry, len(parts)):
        return None
    to, root = _permutations(parts, geometry, lambda part: _read(_short(head, [part]), runtime) is not None)
    if not to:
        return None
    short = _short(head, parts[: max(root) + 1])
    algorithm = _read(short, runtime)
    found = FileImages(short, np.stack(to), np.array(root, dtype=np.int64))
    if algorithm is None or [gpu.id for gpu in algorithm.gpus] != list(range(max(root) + 1)):
        return None
    return found if all(_fits_together(gpu, found) for gpu in algorithm.gpus) else None


def _short(head: str, parts: Sequence[str]) -> str:
    return "\n".join([head, _GPU_END.join([*parts, _END])])


def _read(text: str, runtime: Runtime) -> AlgoElement | None:
    findings = Findings()
    algorithm = parse_algorithm(read_document(text, findings), runtime, findings)
    return None if findings.broken else algorithm


def _permutations(
    parts: Sequence[str], geometry: BufferLengths, is_read: Callable[[str], bool]
) -> tuple[list[IntArray], list[int]]:
    """New names of the ranks in every rank's program, and whose image that is; nothing if too many are images of no other rank's."""
    patterns: list[_Pattern] = []
    to: list[IntArray] = []
    root: list[int] = []
    for rank, part in enumerate(parts):
        pieces = part.split('"')
        images = (pattern.image(rank, pieces) for pattern in patterns)
        number, image = next(((n, found) for n, found in enumerate(images) if found is not None), (len(patterns), None))
        if image is None:
            may_be_root = rank == len(patterns) < min(_MOST_ROOTS, _PART * len(parts))
            if not may_be_root or not _PLAIN_GPU.fullmatch(part) or not is_read(part):
                return [], []
            patterns.append(_Pattern(part, geometry))
            # In what is an image of itself all ranks and shards exist.
            image = patterns[-1].image(rank, pieces)
            if image is None:
                return [], []
        to.append(image)
        root.append(number)
    return to, root


def _of_all(geometry: BufferLengths) -> frozenset[Buffer]:
    """Buffers that hold a shard for every rank."""
    longest = max(geometry.input_chunks, geometry.output_chunks)
    return frozenset(buffer for buffer in (Buffer.INPUT, Buffer.OUTPUT) if geometry.chunks(buffer) == longest)


def _unit(geometry: BufferLengths) -> int:
    """Chunks of one rank's shard of a buffer that holds one for every rank."""
    return max(geometry.input_chunks, geometry.output_chunks) // geometry.num_ranks


def _may_have_images(geometry: BufferLengths, num_ranks: int) -> bool:
    """True if images can be recognized: shards are of whole chunks, one for each rank."""
    whole = max(geometry.input_chunks, geometry.output_chunks)
    if geometry.kind is None or geometry.kind in ROOTED or geometry.num_ranks != num_ranks or whole % num_ranks:
        return False
    return whole <= MAX_OFFSET + 1


@dataclass(frozen=True, slots=True)
class _Followers:
    """Shards that steps move together with those of which they name a cell.

    Attributes
    ----------
    of
        Number of the place, among all that may be otherwise in an image.
    by, owners
        How many shards further on, and whose shard that is.
    """

    of: IntArray
    by: IntArray
    owners: IntArray


class _Pattern:
    """A rank's text, cut at double quotes: what an image may have otherwise, and what it must have as it is."""

    def __init__(self, text: str, geometry: BufferLengths) -> None:
        self._num_ranks = geometry.num_ranks
        pieces = text.split('"')
        self._rank = int(pieces[1])
        unit, of_all = _unit(geometry), {str(buffer) for buffer in _of_all(geometry)}
        changing: list[int] = []
        scales: list[int] = []
        followers: list[tuple[int, int, int]] = []
        for index in range(3, len(pieces), 2):
            name = pieces[index - 1]
            is_peer = name in (" send=", " recv=")
            is_place = name in _TO_COUNT and pieces[index - 2] in of_all
            if not (is_peer or is_place) or pieces[index] == "-1":
                continue
            if is_place:
                owner, cell = divmod(int(pieces[index]), unit)
                more = (cell + max(int(pieces[index + _TO_COUNT[name]]), 1) - 1) // unit
                more = min(more, geometry.num_ranks)  # beyond all shards, which is enough to see that this is no image
                followers += [(len(changing), by, owner + by) for by in range(1, more + 1)]
            changing.append(index)
            scales.append(1 if is_peer else unit)
        kept = sorted(set(range(len(pieces))) - {1, *changing})
        self._length = len(pieces)
        self._keep = _picker(kept)
        self._change = _picker(changing)
        self._kept = self._keep(pieces)
        self._scales = np.array(scales, dtype=np.int64)
        self._owners, self._cells = np.divmod(
            np.array([int(pieces[i]) for i in changing], dtype=np.int64), self._scales
        )
        columns = np.array(followers, dtype=np.int64).reshape(-1, 3).T
        self._followers = _Followers(columns[0], columns[1], columns[2])
        self._names = [str(number) for number in range(unit * geometry.num_ranks)]

    def image(self, rank: int, pieces: list[str]) -> IntArray | None:
        """Return the permutation that makes a rank's text, cut at double quotes, of this one, or None if none does."""
        if len(pieces) != self._length or pieces[1] != str(rank) or self._keep(pieces) != self._kept:
            return None
        changed = self._change(pieces)
        try:
            owners = np.array([int(number) for number in changed], dtype=np.int64) // self._scales
        except (ValueError, OverflowError):
            return None
        more = self._followers
        following = owners[more.of] + more.by
        named = np.concatenate([owners, following])
        if len(named) and not 0 <= named.min() <= named.max() < self._num_ranks:
            return None
        image = np.full(self._num_ranks, -1, dtype=np.int64)
        image[self._owners] = owners
        image[more.owners] = following
        if image[self._rank] != rank or not np.array_equal(np.sort(image), np.arange(self._num_ranks)):
            return None
        expected = (image[self._owners] * self._scales + self._cells).tolist()
        names = self._names
        # Images found twice must be equal: of shards named first and of those that follow them.
        agree = np.array_equal(image[more.owners], following)
        return image if agree and tuple([names[number] for number in expected]) == changed else None


def _picker(indices: list[int]) -> Callable[[list[str]], tuple[str, ...]]:
    """Function that picks these of a list."""
    if len(indices) < 2:
        return lambda pieces: tuple(pieces[index] for index in indices)
    picked: Any = itemgetter(*indices)
    return picked  # type: ignore[no-any-return]


def _fits_together(gpu: Gpu, images: FileImages) -> bool:
    """True if renaming the ranks of a root's program is consistent: the image of each peer's root is the root's image of that peer."""
    to, root = images.to, images.root
    rows = np.flatnonzero(root == gpu.id)
    peers = sorted({peer for tb in gpu.threadblocks for peer in (tb.send_peer, tb.recv_peer) if peer >= 0})
    for peer in peers:
        if peer >= len(to) or peer == gpu.id:
            return False
        there = to[rows, peer]
        if np.any(root[there] != root[peer]) or not np.array_equal(to[there], to[rows][:, to[peer]]):
            return False
    return True


class ImageContents(Contents):
    """Cells of the roots, to which messages bring images of what roots send."""

    def __init__(
        self, setting: RunSetting, findings: Findings, plan: KernelProgram, algorithm: AlgoElement, images: FileImages
    ) -> None:
        super().__init__(setting, findings)
        peers = {(gpu.id, tb.id): tb.recv_peer for gpu in algorithm.gpus for tb in gpu.threadblocks}
        self._senders = [peers[plan.blocks[block].gpu, plan.blocks[block].id] for block in plan.receivers]
        self._to = images.to
        self._unit = _unit(setting.geometry)
        self._sums: dict[tuple[int, int], int] = {}

    def arrived(self, connection: int, values: list[int]) -> list[int]:
        """Images of the values under the permutation that takes its root to the sender."""
        sender = self._senders[connection]
        return [value if value < 0 else self._image(sender, value) for value in values]

    def _image(self, sender: int, value: int) -> int:
        geometry, to = self.setting.geometry, self._to[sender]
        chunk, ranks = value >> self.num_ranks, value & (1 << self.num_ranks) - 1
        if geometry.kind in COMBINING:
            return self._place(to, chunk) << self.num_ranks | self._ranks(sender, ranks)
        rank, offset = divmod(chunk, geometry.input_chunks)
        if Buffer.INPUT in _of_all(geometry):
            offset = self._place(to, offset)
        return int(to[rank]) * geometry.input_chunks + offset << self.num_ranks | self._ranks(sender, ranks)

    def _place(self, to: IntArray, offset: int) -> int:
        owner, cell = divmod(offset, self._unit)
        return int(to[owner]) * self._unit + cell

    def _ranks(self, sender: int, ranks: int) -> int:
        """Image of a set of ranks, which are bits."""
        known = self._sums.get((sender, ranks))
        if known is None:
            size = -(-self.num_ranks // 8)
            bits = np.unpackbits(np.frombuffer(ranks.to_bytes(size, "little"), dtype=np.uint8), bitorder="little")
            image = np.zeros(8 * size, dtype=np.uint8)
            image[self._to[sender]] = bits[: self.num_ranks]
            known = self._sums[sender, ranks] = int.from_bytes(
                np.packbits(image, bitorder="little").tobytes(), "little"
            )
        return known
