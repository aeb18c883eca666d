"""RCCL's ``NCCL_RINGS`` and ``RCCL_TREES``: strings of GPUs that its search takes as they are.

Format: ``parseGraph`` and ``parseGraphLight`` in ``src/graph/rome_models.cc`` and ``ncclTreeBasePostset`` in ``src/graph/connect.cc`` of
ROCm/rccl 0cbce2a7. A ring is its GPUs with spaces between, a tree is a GPU and its subtrees in parentheses, ``(0(1(2))(3))``; ``|`` is
between channels. Numbers are those of the HIP devices, and rank r is taken to be device r. RCCL reads trees instead of rings where both
variables are set, and passes over a ring that does not name every GPU once.
"""

from __future__ import annotations

import re
import shlex

from taccl_py.errors import InputError, LoweringError
from taccl_py.lowering.nccl.channels import MAX_CHANNELS, TARGET, NcclChannels, Ring, children_of

RINGS, TREES = "NCCL_RINGS", "RCCL_TREES"
_MAX_GPUS = 64  # NCCL_TOPO_MAX_NODES: of rings, and trees
_MAX_CHILDREN = 3  # NCCL_MAX_TREE_ARITY
_MAX_TREE = 4 * _MAX_GPUS - 1  # characters of a tree
_TOKENS = re.compile(r"\(|\)|[0-9]+")


def write_strings(channels: NcclChannels) -> str:
    """Shell line that sets RCCL's variable.

    Raises
    ------
    LoweringError
        If there are more GPUs, or more children of a rank, than RCCL takes.
    """
    if channels.num_ranks > _MAX_GPUS:
        raise _refusal(f"RCCL takes {_MAX_GPUS} GPUs in a string, the schedule has {channels.num_ranks}", "gpus")
    if channels.rings:
        return _line(RINGS, "|".join(" ".join(map(str, ring)) for ring in channels.rings))
    texts = []
    for parents in channels.trees:
        children = children_of(parents)
        rank = max(range(len(children)), key=lambda each: len(children[each]))
        if len(children[rank]) > _MAX_CHILDREN:
            raise _refusal(
                f"RCCL's trees have {_MAX_CHILDREN} children at most, rank {rank} has {len(children[rank])}", "children"
            )
        texts.append(_subtree(parents.index(-1), children))
        if len(texts[-1]) > _MAX_TREE:
            raise _refusal(f"RCCL takes {_MAX_TREE} characters for a tree, one has {len(texts[-1])}", "characters")
    return _line(TREES, "|".join(texts))


def _line(variable: str, value: str) -> str:
    return f"export {variable}={shlex.quote(value)}\n"


def _subtree(rank: int, children: tuple[Ring, ...]) -> str:
    return f"({rank}{''.join(_subtree(child, children) for child in children[rank])})"


def _refusal(why: str, limit: str) -> LoweringError:
    return LoweringError(why, runtime=TARGET, limit=limit)


def read_strings(text: str, path: str) -> NcclChannels:
    """Channels of a shell line that `write_strings` wrote; their rate is not in it, and 0.

    Raises
    ------
    InputError
        If it sets neither variable, or a channel is not all GPUs, each once.
    """
    words = shlex.split(text)
    variable, equals, value = words[-1].partition("=") if words else ("", "", "")
    if variable not in (RINGS, TREES) or not equals or len(words) > 2:
        raise InputError(f"sets neither {RINGS} nor {TREES}; write it with taccl lower --to rccl-channels", path=path)
    parts = value.split("|")
    if len(parts) > 2 * MAX_CHANNELS:
        raise InputError(f"has {len(parts)} channels, {2 * MAX_CHANNELS} are possible", path=path, field=variable)
    read = _ring if variable == RINGS else _tree
    found = tuple(read(part, path) for part in parts)
    if len(set(map(len, found))) > 1:
        raise InputError("has channels of different numbers of GPUs; write it again", path=path, field=variable)
    return NcclChannels(found, (), 0.0) if variable == RINGS else NcclChannels((), found, 0.0)


def _ring(text: str, path: str) -> Ring:
    words = text.split()
    ring = tuple(int(word) for word in words if word.isdecimal())
    if sorted(ring) != list(range(len(words))):
        raise _not_all(text, path, RINGS)
    return ring


def _tree(text: str, path: str) -> Ring:
    """Parents of the GPUs of a tree; a number opens a subtree of the innermost parenthesis that is open."""
    parents: dict[int, int] = {}
    above: list[int] = []
    tokens = _TOKENS.findall(text)
    if "".join(tokens) != text:
        raise _not_all(text, path, TREES)
    for place, token in enumerate(tokens):
        if token.isdecimal():
            if place == 0 or tokens[place - 1] != "(" or int(token) in parents:
                raise _not_all(text, path, TREES)
            parents[int(token)] = above[-1] if above else -1
            above.append(int(token))
        elif token == ")" and not above:
            raise _not_all(text, path, TREES)
        elif token == ")":
            above.pop()
    if above or sorted(parents) != list(range(len(parents))) or list(parents.values()).count(-1) != 1:
        raise _not_all(text, path, TREES)
    return tuple(parents[rank] for rank in range(len(parents)))


def _not_all(text: str, path: str, field: str) -> InputError:
    return InputError(
        f"found {text[:60]!r}, where all GPUs from 0 are needed, each once; write it again", path=path, field=field
    )
