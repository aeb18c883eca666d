"""Sketch files: our JSON (documented in sketches/README.md) and TACCL's, read unchanged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from taccl_py.jsonio import Fields, canonical_json, read_json
from taccl_py.sketch.model import (
    DIRECT,
    FULLY_CONNECTED,
    MACHINE,
    NODE,
    Policy,
    Rotation,
    Sketch,
    Strategy,
    SwitchGroup,
)

FORMAT = "taccl-sketch"
VERSION = 1

_TACCL_CONNECTIONS = {"direct-map": DIRECT, "fully-connected": FULLY_CONNECTED}
_TACCL_WORDS = {
    "nodes": "nnodes",
    "intra_node": "intranode_sketch",
    "inter_node": "internode_sketch",
    "inter_node.connections": "internode_sketch.internode_conn",
    "inter_node.relays": "internode_sketch.gpus_to_sender_rev_map",
    "inter_node.own_first": "internode_sketch.enforce_ordering",
    "symmetry.rotations": "symmetry_offsets",
    "chunks_per_rank": "hyperparameters.input_chunkup",
}
_RANK = re.compile(r"[0-9]{1,9}")
_POLICIES = tuple(Policy)
_STRATEGIES = tuple(Strategy)


def read_sketch(path: Path) -> Sketch:
    """Read a sketch file of ours or of TACCL.

    Raises
    ------
    InputError
        Naming the file and the field.
    """
    fields = Fields(read_json(path), str(path))
    return _taccl_sketch(fields, path.stem) if fields.has("nnodes") else _own_sketch(fields)


def _own_sketch(fields: Fields) -> Sketch:
    fields.header(FORMAT, VERSION)
    intra = fields.object("intra_node") if fields.has("intra_node") else Fields({}, fields.path, "/intra_node")
    inter = fields.object("inter_node") if fields.has("inter_node") else Fields({}, fields.path, "/inter_node")
    symmetry = fields.object("symmetry") if fields.has("symmetry") else Fields({}, fields.path, "/symmetry")
    sketch = Sketch(
        name=fields.text("name"),
        purpose=fields.text("purpose", ""),
        topology=fields.text("topology", ""),
        nodes=tuple(fields.integers("nodes", [], least=1)),
        strategy=Strategy(intra.choice("strategy", _STRATEGIES, "none")),
        switches=tuple(_switch(switch) for switch in intra.objects("switches", [])),
        links=_rank_map(intra, "links"),
        connections=_connections(inter, {DIRECT: DIRECT, FULLY_CONNECTED: FULLY_CONNECTED}, "connections"),
        relays=_rank_map(inter, "relays"),
        own_first=inter.boolean("own_first", False),
        rotations=tuple(_rotation(rotation) for rotation in symmetry.objects("rotations", [])),
        permutations=_permutations(symmetry),
        chunks_per_rank=fields.integer("chunks_per_rank", 1, least=1),
        source=fields.path,
    )
    for part in (intra, inter, symmetry, fields):
        part.finish()
    return sketch


def _switch(fields: Fields) -> SwitchGroup:
    switch = SwitchGroup(tuple(fields.integers("ranks", least=0)), Policy(fields.choice("policy", _POLICIES, "free")))
    fields.finish()
    return switch


def _rotation(fields: Fields) -> Rotation:
    def amount(key: str, words: tuple[str, ...], least: int) -> int | str:
        value = fields.raw(key)
        if isinstance(value, str):
            return fields.choice(key, words)
        return fields.integer(key, least=least)

    rotation = Rotation(amount("by", (NODE,), 0), amount("within", (NODE, MACHINE), 1))
    fields.finish()
    return rotation


def _permutations(fields: Fields) -> tuple[tuple[int, ...], ...]:
    items = fields.items("permutations", [])
    holder = Fields({str(i): item for i, item in enumerate(items)}, fields.path, f"{fields.pointer}/permutations")
    return tuple(tuple(holder.integers(str(i), least=0)) for i in range(len(items)))


def _rank_map(fields: Fields, key: str) -> dict[int, tuple[int, ...]] | None:
    if not fields.has(key) or fields.raw(key) is None:
        return None
    return _map_of(fields.object(key))


def _map_of(fields: Fields) -> dict[int, tuple[int, ...]]:
    result: dict[int, tuple[int, ...]] = {}
    for key in fields.names():
        if not _RANK.fullmatch(key):
            fields.fail(key, 'is not a local rank; keys are ranks written as text, such as "1"')
        rank = int(key)
        if rank in result:
            fields.fail(key, f"is rank {rank} a second time; keep one entry for it")
        result[rank] = tuple(fields.integers(key, least=0))
        if not result[rank]:
            fields.fail(key, "is an empty list; list at least one rank or leave the entry out")
    return result


def _connections(fields: Fields, words: dict[str, str], key: str) -> dict[int, tuple[int, ...]] | str | None:
    if not fields.has(key):
        return None
    if isinstance(fields.raw(key), str):
        return words[fields.choice(key, tuple(words))]
    return _map_of(fields.object(key))


def _taccl_sketch(fields: Fields, name: str) -> Sketch:
    """TACCL's format (its examples/sketch); its node count is part of the sketch."""
    nodes = fields.integer("nnodes", least=1)
    intra = fields.object("intranode_sketch")
    strategy = Strategy(intra.choice("strategy", _STRATEGIES))
    switches: tuple[SwitchGroup, ...] = ()
    if strategy is Strategy.SWITCH:
        switches = _taccl_switches(intra)
    intra.finish()
    connections: Any = None
    relays = None
    own_first = False
    if fields.has("internode_sketch") or nodes > 1:
        inter = fields.object("internode_sketch")
        inter.choice("strategy", ("relay",))
        inter.raw("internode_conn")
        connections = _connections(inter, _TACCL_CONNECTIONS, "internode_conn")
        relays = _rank_map(inter, "gpus_to_sender_rev_map")
        own_first = inter.boolean("enforce_ordering", False)
        inter.finish()
    hyperparameters = fields.object("hyperparameters")
    chunks_per_rank = hyperparameters.integer("input_chunkup", least=1)
    hyperparameters.finish()
    rotations = _taccl_rotations(fields)
    fields.finish()
    return Sketch(
        name=name, purpose="TACCL sketch", nodes=(nodes,), strategy=strategy, switches=switches,
        connections=connections, relays=relays, own_first=own_first, rotations=rotations,
        chunks_per_rank=chunks_per_rank, source=fields.path, words=_TACCL_WORDS,
    )  # fmt: skip


def _taccl_switches(intra: Fields) -> tuple[SwitchGroup, ...]:
    sets = intra.items("switches")
    policies = intra.items("switch_hyperedge_strategy")
    if len(sets) != len(policies):
        intra.fail("switch_hyperedge_strategy", f"has {len(policies)} entries for {len(sets)} switches; give one each")
    holder = Fields({str(i): item for i, item in enumerate(sets)}, intra.path, f"{intra.pointer}/switches")
    words = Fields(
        {str(i): item for i, item in enumerate(policies)}, intra.path, f"{intra.pointer}/switch_hyperedge_strategy"
    )
    return tuple(
        SwitchGroup(tuple(holder.integers(str(i), least=0)), Policy(words.choice(str(i), _POLICIES)))
        for i in range(len(sets))
    )


def _taccl_rotations(fields: Fields) -> tuple[Rotation, ...]:
    rotations = []
    items = fields.items("symmetry_offsets")
    holder = Fields({str(i): item for i, item in enumerate(items)}, fields.path, "/symmetry_offsets")
    for i in range(len(items)):
        pair = holder.integers(str(i), least=0)
        if len(pair) != 2 or pair[1] < 1:
            holder.fail(str(i), "is not a pair [offset, group size]; write for example [2, 16]")
        rotations.append(Rotation(pair[0], pair[1]))
    return tuple(rotations)


def sketch_to_json(sketch: Sketch) -> dict[str, Any]:
    """Our JSON of a sketch."""
    intra: dict[str, Any] = {"strategy": str(sketch.strategy)}
    if sketch.switches:
        intra["switches"] = [{"ranks": list(s.ranks), "policy": str(s.policy)} for s in sketch.switches]
    if sketch.links is not None:
        intra["links"] = {str(k): list(v) for k, v in sketch.links.items()}
    inter: dict[str, Any] = {}
    if isinstance(sketch.connections, str):
        inter["connections"] = sketch.connections
    elif sketch.connections is not None:
        inter["connections"] = {str(k): list(v) for k, v in sketch.connections.items()}
    if sketch.relays is not None:
        inter["relays"] = {str(k): list(v) for k, v in sketch.relays.items()}
    if sketch.own_first:
        inter["own_first"] = True
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": sketch.name,
        "purpose": sketch.purpose,
        "topology": sketch.topology,
        "nodes": list(sketch.nodes),
        "intra_node": intra,
        "inter_node": inter,
        "symmetry": {
            "rotations": [{"by": r.by, "within": r.within} for r in sketch.rotations],
            "permutations": [list(p) for p in sketch.permutations],
        },
        "chunks_per_rank": sketch.chunks_per_rank,
    }


def sketch_text(sketch: Sketch) -> str:
    """Canonical file text of a sketch."""
    return canonical_json(sketch_to_json(sketch))
