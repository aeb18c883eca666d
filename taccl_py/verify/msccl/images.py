"""Files in which every rank does what rank 0 does, with other names: there rank 0 can stand for all.

Rank r's program is an *image* of rank 0's if a permutation of the ranks, which takes 0 to r, makes the one text of the other:
peers are renamed, shares of ranks in the buffers change places, and all else is the same, letter by letter. The permutations
are read off the text, and must fit together: the image of what rank q does for its image of rank x is what the image of q
does for the image of x, for all peers q of rank 0 (so the two sides of every connection agree). Then

* all ranks can go on in step, and whatever order they take instead ends where that ends, as no condition that is once
  fulfilled is ever lost (`taccl_py.verify.msccl.execute`): the program ends with the same queues if rank 0's does, with each
  connection standing for all its images;
* what rank q holds is the image of what rank 0 holds: a message from q brings the image of what rank 0 sends there;
* flags order the accesses of each rank as they order rank 0's.

Nothing is assumed of who wrote the file, and where anything does not fit, or an objection is found, all ranks are judged.
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
from taccl_py.verify.msccl.geometry import Geometry
from taccl_py.verify.msccl.grammar import Algorithm, Gpu, parse_algorithm
from taccl_py.verify.msccl.operations import Plan
from taccl_py.verify.msccl.rules import find_geometry
from taccl_py.verify.msccl.semantics import Contents, Setting
from taccl_py.verify.msccl.text import read_document

# Files of fewer ranks are judged rank by rank, which takes little time there.
FEWEST_RANKS = 64

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

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Images:
    """A file in which rank 0 stands for all.

    Attributes
    ----------
    text
        The file without the ranks after rank 0.
    to
        ``to[r, x]`` is what rank x is called in the image that is rank r's program.
    """

    text: str
    to: IntArray

    @cached_property
    def mirror(self) -> Sequence[int]:
        """Rank to which rank 0 sends what the image of it that each rank is sends to rank 0."""
        found: list[int] = np.argmax(self.to == 0, axis=1).tolist()
        return found


def find_images(text: str, runtime: Runtime, kind: Kind | None) -> Images | None:
    """Find the permutations that make each rank's program of rank 0's, or return None if there are none or they do not fit together.

    Parameters
    ----------
    text
        Any text.
    runtime, kind
        As for the judge.
    """
    head, newline, body = text.partition("\n")
    if not (newline and head.startswith("<algo ") and body.endswith(_GPU_END + _END)):
        return None
    parts = body[: -len(_END)].split(_GPU_END)[:-1]
    if not FEWEST_RANKS <= len(parts) <= MAX_XML_CHILDREN or not _PLAIN_GPU.fullmatch(parts[0]):
        return None
    short = f"{head}\n{parts[0]}{_GPU_END}{_END}"
    findings = Findings()
    algorithm = parse_algorithm(read_document(short, findings), runtime, findings)
    if algorithm is None or findings.broken or algorithm.num_ranks != len(parts) or len(algorithm.gpus) != 1:
        return None
    geometry = find_geometry(algorithm, runtime, kind, findings)
    if geometry is None or not _has_images(algorithm.gpus[0], geometry):
        return None
    to = _Pattern(parts[0], geometry).images(parts)
    return None if to is None or not _fit_together(algorithm.gpus[0], to) else Images(short, to)


def _of_all(geometry: Geometry) -> frozenset[Buffer]:
    """Buffers that hold a share for every rank."""
    longest = max(geometry.input_chunks, geometry.output_chunks)
    return frozenset(buffer for buffer in (Buffer.INPUT, Buffer.OUTPUT) if geometry.chunks(buffer) == longest)


def _unit(geometry: Geometry) -> int:
    """Chunks of one rank's share of a buffer that holds one for every rank."""
    return max(geometry.input_chunks, geometry.output_chunks) // geometry.num_ranks


def _has_images(gpu: Gpu, geometry: Geometry) -> bool:
    """Whether images of this rank can be told: shares are whole chunks, and no step moves more than one of them."""
    whole = max(geometry.input_chunks, geometry.output_chunks)
    if gpu.id != 0 or geometry.kind is None or geometry.kind in ROOTED or whole % geometry.num_ranks:
        return False
    unit, of_all = _unit(geometry), _of_all(geometry)
    return whole <= MAX_OFFSET + 1 and all(
        address.buffer not in of_all or address.offset // unit == (address.offset + max(step.count, 1) - 1) // unit
        for tb in gpu.threadblocks
        for step in tb.steps
        for address in (step.source, step.target)
    )


class _Pattern:
    """Rank 0's text, cut at double quotes: what an image may have otherwise, and what it must have as it is."""

    def __init__(self, text: str, geometry: Geometry) -> None:
        self._num_ranks = geometry.num_ranks
        pieces = text.split('"')
        unit, of_all = _unit(geometry), {str(buffer) for buffer in _of_all(geometry)}
        changing: list[int] = []
        scales: list[int] = []
        for index in range(3, len(pieces), 2):
            name = pieces[index - 1]
            is_peer = name in (" send=", " recv=")
            is_place = name in (" srcoff=", " dstoff=") and pieces[index - 2] in of_all
            if (is_peer or is_place) and pieces[index] != "-1":
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
        self._names = [str(number) for number in range(unit * geometry.num_ranks)]

    def images(self, parts: Sequence[str]) -> IntArray | None:
        """Return the permutation of every rank, or None if one has none."""
        found: list[IntArray] = []
        # Rank 0 comes first: in what is an image of itself all ranks and shares exist.
        for rank, part in enumerate(parts):
            image = self._image(rank, part)
            if image is None:
                return None
            found.append(image)
        return np.stack(found)

    def _image(self, rank: int, text: str) -> IntArray | None:
        pieces = text.split('"')
        if len(pieces) != self._length or pieces[1] != str(rank) or self._keep(pieces) != self._kept:
            return None
        changed = self._change(pieces)
        try:
            owners = np.array([int(number) for number in changed], dtype=np.int64) // self._scales
        except (ValueError, OverflowError):
            return None
        if len(owners) and not 0 <= owners.min() <= owners.max() < self._num_ranks:
            return None
        image = np.full(self._num_ranks, -1, dtype=np.int64)
        image[self._owners] = owners
        if image[0] != rank or not np.array_equal(np.sort(image), np.arange(self._num_ranks)):
            return None
        expected = (image[self._owners] * self._scales + self._cells).tolist()
        names = self._names
        return image if tuple([names[number] for number in expected]) == changed else None


def _picker(indices: list[int]) -> Callable[[list[str]], tuple[str, ...]]:
    """Function that picks these of a list."""
    if len(indices) < 2:
        return lambda pieces: tuple(pieces[index] for index in indices)
    picked: Any = itemgetter(*indices)
    return picked  # type: ignore[no-any-return]


def _fit_together(gpu: Gpu, to: IntArray) -> bool:
    """Whether the image of each peer's image is the image of where that peer goes."""
    peers = sorted({peer for tb in gpu.threadblocks for peer in (tb.send_peer, tb.recv_peer) if peer >= 0})
    return all(0 < peer < len(to) and bool(np.array_equal(to[to[:, peer]], to[:, to[peer]])) for peer in peers)


class ImageContents(Contents):
    """Cells of rank 0, to which messages bring images of what rank 0 itself sends."""

    def __init__(self, setting: Setting, findings: Findings, plan: Plan, algorithm: Algorithm, images: Images) -> None:
        super().__init__(setting, findings)
        peers = {tb.id: tb.recv_peer for tb in algorithm.gpus[0].threadblocks}
        self._senders = [peers[plan.blocks[block].id] for block in plan.receivers]
        self._to = images.to
        self._unit = _unit(setting.geometry)
        self._sums: dict[tuple[int, int], int] = {}

    def arrived(self, connection: int, values: list[int]) -> list[int]:
        """Images of the values under the permutation that takes rank 0 to the sender."""
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
