"""Dispatch and combine of a mixture of experts: tokens go to the ranks of their experts, once to each rank, and weighted results come back as sums.

A routing is an array with a row for each token and a column for each choice: the number of an expert, or -1 for none. Tokens lie on the ranks
in order, as many on each; expert e lies on rank ``e // (experts / ranks)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from taccl_py.arrays import IntArray
from taccl_py.demand.counts import read_rows
from taccl_py.demand.model import DTYPES, ChunkPlace, DataChunk, DataDemand, dtype_named
from taccl_py.demand.variable import ExpertExchange
from taccl_py.errors import InputError
from taccl_py.units import MAX_CHUNK_COPIES

Routing = IntArray


@dataclass(frozen=True, slots=True)
class RouterLaw:
    """Law by which routings are drawn.

    Attributes
    ----------
    experts, topk
        Number of experts, and how many of them a token goes to.
    groups, topk_groups
        Groups of experts of equal size, and to how many of them a token is limited: those with its best expert, its next best, and so on.
        One of one for no limit.
    exponent
        Popularity of the experts is 1, 1/2^e, 1/3^e and so on, in an order that is drawn; 0 for even.
    """

    experts: int
    topk: int
    groups: int = 1
    topk_groups: int = 1
    exponent: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn."""
        if self.experts % self.groups:
            raise InputError(
                f"{self.experts} experts cannot be parted into {self.groups} equal groups", field="--expert-groups"
            )
        if self.topk_groups > self.groups:
            raise InputError(f"found {self.topk_groups}, there are {self.groups} groups", field="--topk-groups")
        if self.topk > self.experts // self.groups * self.topk_groups:
            raise InputError(
                f"found {self.topk}, a token can choose among {self.experts // self.groups * self.topk_groups} experts",
                field="--topk",
            )

    def draw(self, num_ranks: int, tokens: int, seed: int) -> Routing:
        """Routing of so many tokens a rank, without one expert twice, drawn as the exponential clocks of the experts ring first."""
        random = np.random.default_rng(seed)
        order = random.permutation(self.experts)
        weights = np.empty(self.experts)
        weights[order] = 1.0 / np.arange(1, self.experts + 1) ** self.exponent
        found = np.empty((num_ranks * tokens, self.topk), np.int64)
        for rank in range(num_ranks):
            rings = random.exponential(size=(tokens, self.experts)) / weights
            if self.topk_groups < self.groups:
                by_group = rings.reshape(tokens, self.groups, -1).min(axis=2)
                barred = np.argsort(by_group, axis=1)[:, self.topk_groups :]
                is_barred = np.zeros((tokens, self.groups), bool)
                np.put_along_axis(is_barred, barred, values=True, axis=1)
                rings[np.repeat(is_barred, self.experts // self.groups, axis=1)] = np.inf
            chosen = np.argsort(rings, axis=1)[:, : self.topk]
            found[rank * tokens : (rank + 1) * tokens] = np.sort(chosen, axis=1)
        return found


@dataclass(frozen=True)
class ExpertCall:
    """One exchange of a mixture of experts, with the experts of each token in a file or drawn.

    Attributes
    ----------
    exchange
        Dispatch or combine.
    experts, token_bytes
        Number of experts, and size of a token or of a result.
    routing
        Experts of each token, or a file of them; None where they are drawn.
    tokens, topk
        Of drawn routings: tokens of each rank, and experts of each token.
    expert_groups, topk_groups
        Groups of experts, and to how many of them a drawn token keeps.
    exponent
        Of drawn routings: Zipf's, 0 is even.
    dtype
        Type of the elements; None is bytes, of combine bfloat16.
    seed
        Of drawn routings.
    """

    exchange: ExpertExchange
    experts: int
    token_bytes: int
    routing: Path | Routing | None = None
    tokens: int | None = None
    topk: int | None = None
    expert_groups: int = 1
    topk_groups: int = 1
    exponent: float = 0.0
    dtype: str | None = None
    seed: int = 0

    def demand(self, num_ranks: int) -> DataDemand:
        """Demand on so many ranks.

        Raises
        ------
        InputError
            If something is missing, is given twice, or does not fit the ranks; its field is named as an option.
        """
        self._require_positive(num_ranks)
        is_dispatch = self.exchange is ExpertExchange.MOE_DISPATCH
        try:
            dtype = dtype_named(self.dtype or ("uint8" if is_dispatch else "bfloat16"))
        except InputError as error:
            raise InputError(error.what, field="--dtype") from None
        if self.token_bytes < 1 or self.token_bytes % DTYPES[dtype]:
            raise InputError(
                f"found {self.token_bytes} bytes, a positive multiple of {DTYPES[dtype]} (an element of {dtype}) is needed",
                field="--token-bytes",
            )
        make = moe_dispatch if is_dispatch else moe_combine
        return make(self._routing(num_ranks), self.experts, num_ranks, self.token_bytes, dtype)

    def _require_positive(self, num_ranks: int) -> None:
        numbers = {
            "--ranks": num_ranks,
            "--experts": self.experts,
            "--tokens": self.tokens,
            "--topk": self.topk,
            "--expert-groups": self.expert_groups,
            "--topk-groups": self.topk_groups,
        }
        for field, number in numbers.items():
            if number is not None and number < 1:
                raise InputError(f"found {number}, at least 1 is needed", field=field)

    def _routing(self, num_ranks: int) -> Routing:
        drawn = {"tokens": self.tokens, "topk": self.topk}
        if self.routing is not None:
            given = next((name for name, value in drawn.items() if value is not None), None)
            if given is not None:
                raise InputError("goes without --routing; leave one out", field=f"--{given}")
            return read_routing(self.routing, self.experts) if isinstance(self.routing, Path) else self.routing
        missing = next((name for name, value in drawn.items() if value is None), None)
        if missing is not None:
            raise InputError(f"{self.exchange} needs it, or a routing", field=f"--{missing}")
        law = RouterLaw(self.experts, self.topk or 0, self.expert_groups, self.topk_groups, self.exponent)
        return law.draw(num_ranks, self.tokens or 0, self.seed)


def read_routing(path: Path, experts: int) -> Routing:
    """Routing of a file: CSV, JSON or ``.npy`` as of counts, a row for each token; -1, or a shorter row, is no expert.

    Raises
    ------
    InputError
        If the file cannot be read, or names an expert that there is not.
    """
    rows = read_rows(path, least=-1)
    for number, row in enumerate(rows):
        wrong = next((expert for expert in row if expert >= experts), None)
        if wrong is not None:
            raise InputError(
                f"found expert {wrong}, experts are 0..{experts - 1}", path=str(path), field=f"row {number}"
            )
    found = np.full((len(rows), max(map(len, rows))), -1, np.int64)
    for number, row in enumerate(rows):
        found[number, : len(row)] = row
    return found


@dataclass(frozen=True, slots=True)
class _Run:
    """Tokens one behind the other on one rank that go to the same ranks.

    Attributes
    ----------
    source, first
        Their rank, and how many tokens lie before them in its input.
    tokens
        How many they are.
    places
        Ranks of their experts, and how many tokens lie before them in what comes there.
    """

    source: int
    first: int
    tokens: int
    places: tuple[tuple[int, int], ...]


def _runs(routing: Routing, experts: int, num_ranks: int) -> Iterator[_Run]:
    """Tokens that go together, in the order of ranks and places; what comes to a rank lies there in that order."""
    per_rank, tokens = experts // num_ranks, len(routing) // num_ranks
    came = np.zeros(num_ranks, np.int64)
    for source in range(num_ranks):
        chosen = routing[source * tokens : (source + 1) * tokens]
        goes = np.zeros((tokens, num_ranks), bool)
        row, column = np.nonzero(chosen >= 0)
        goes[row, chosen[row, column] // per_rank] = True
        before = came + np.cumsum(goes, axis=0) - goes
        came = came + goes.sum(axis=0)
        edges = [0, *(np.flatnonzero((goes[1:] != goes[:-1]).any(axis=1)) + 1).tolist(), tokens]
        for first, end in pairwise(edges):
            ranks = np.flatnonzero(goes[first])
            if len(ranks):
                places = tuple(zip(ranks.tolist(), before[first, ranks].tolist(), strict=True))
                yield _Run(source, first, end - first, places)


def moe_dispatch(routing: Routing, experts: int, num_ranks: int, token_bytes: int, dtype: str = "uint8") -> DataDemand:
    """Every token goes to each rank that has one of its experts, once.

    Parameters
    ----------
    routing
        Experts of each token, [tokens of all ranks, choices].
    experts
        How many there are, as many on each rank.
    num_ranks
        Number of ranks.
    token_bytes
        Size of a token.
    dtype
        Type of the elements.

    A rank's input holds its tokens, its output those that come to it, by their rank and place there.

    Raises
    ------
    InputError
        If experts or tokens cannot be parted evenly, or nothing goes anywhere.
    """
    runs, tokens, came = _shape(routing, experts, num_ranks)
    chunks = tuple(
        DataChunk(
            run.tokens * token_bytes,
            ((ChunkPlace(run.source, run.first * token_bytes),),),
            tuple(ChunkPlace(rank, place * token_bytes) for rank, place in run.places),
        )
        for run in runs
    )
    inputs, outputs = (tokens * token_bytes,) * num_ranks, tuple(count * token_bytes for count in came)
    return DataDemand("moe-dispatch", num_ranks, chunks, inputs, outputs, dtype)


def moe_combine(
    routing: Routing, experts: int, num_ranks: int, token_bytes: int, dtype: str = "bfloat16"
) -> DataDemand:
    """Every token's results, one of each rank that has an expert of it, are added up where the token came from: `moe_dispatch` backwards.

    Raises
    ------
    InputError
        See `moe_dispatch`.
    """
    runs, tokens, came = _shape(routing, experts, num_ranks)
    chunks = tuple(
        DataChunk(
            run.tokens * token_bytes,
            tuple((ChunkPlace(rank, place * token_bytes),) for rank, place in run.places),
            (ChunkPlace(run.source, run.first * token_bytes),),
        )
        for run in runs
    )
    inputs, outputs = tuple(count * token_bytes for count in came), (tokens * token_bytes,) * num_ranks
    return DataDemand("moe-combine", num_ranks, chunks, inputs, outputs, dtype)


def _shape(routing: Routing, experts: int, num_ranks: int) -> tuple[list[_Run], int, list[int]]:
    """Runs, tokens of a rank, and how many come to each."""
    if experts % num_ranks:
        raise InputError(f"{experts} experts cannot be parted evenly among {num_ranks} ranks", field="--experts")
    if len(routing) % num_ranks:
        raise InputError(
            f"found {len(routing)} tokens, which cannot be parted evenly among {num_ranks} ranks; fill up with rows of -1"
        )
    if routing.size > MAX_CHUNK_COPIES:
        raise InputError(f"found {routing.size} choices of tokens, at most {MAX_CHUNK_COPIES} are possible")
    runs = list(_runs(routing, experts, num_ranks))
    if not runs:
        raise InputError("no token goes to an expert, so nothing moves")
    came = [0] * num_ranks
    for run in runs:
        for rank, _ in run.places:
            came[rank] += run.tokens
    return runs, len(routing) // num_ranks, came
