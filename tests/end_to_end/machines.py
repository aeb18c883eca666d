"""Random small machines, and sketches that fit them, for properties of the whole way from a topology to an XML text."""

from dataclasses import dataclass

from hypothesis import strategies as st

from taccl_py.collective import COMBINING, ROOTED, Kind
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
from taccl_py.topology.model import Link, Port, Topology

# (alpha_us, beta_us_per_mb): fast, slow, latency only, bandwidth only, tiny, and one that no binary fraction is.
COSTS = ((0.5, 10.0), (0.3, 46.0), (3.0, 105.0), (2.0, 0.0), (0.0, 20.0), (0.001, 0.01), (0.7, 1000 / 43.5))
LATENCIES_US = (0.0, 0.0, 0.0, 0.6, 5.0)
SIZES = (1, 1000, 4096, 65536, 999_999, 1 << 20, 1 << 28)


@dataclass(frozen=True)
class Case:
    """A machine, a sketch that its file may be given with, and what is asked for."""

    topology: Topology
    sketch: Sketch | None
    kind: Kind
    root: int
    size_bytes: int
    chunks_per_rank: int


@dataclass(frozen=True)
class _Shape:
    """Links without costs: pairs of local ranks inside a node (the same in every node), and between two nodes."""

    nodes: int
    ranks: int
    inside: tuple[tuple[int, int], ...]
    between: tuple[tuple[int, int], ...]

    @property
    def num_ranks(self):
        return self.nodes * self.ranks


@st.composite
def shapes(draw, *, both_ways):
    """One node of 2 to 6 ranks, or two nodes of 1 to 3; every rank reaches every other one, and over links both ways if so asked."""
    nodes = draw(st.integers(1, 2))
    ranks = draw(st.integers(2, 6) if nodes == 1 else st.integers(1, 3))
    # A ring leads everywhere; what is drawn on top of it may also repeat a pair, which makes parallel links.
    inside = [(r, (r + 1) % ranks) for r in range(ranks)] if ranks > 1 else []
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    if pairs:
        inside += draw(st.lists(st.sampled_from(pairs), max_size=8))
    between = []
    if nodes == 2:
        everywhere = [(a, b) for a in range(ranks) for b in range(ranks)]
        between = draw(st.lists(st.sampled_from(everywhere), min_size=1, max_size=5))
    if both_ways:
        inside += [(b, a) for a, b in inside if (b, a) not in inside]
        between += [(b, a) for a, b in between if (b, a) not in between]
    return _Shape(nodes, ranks, tuple(inside), tuple(between))


@st.composite
def equal_nodes(draw, shape):
    """Machine whose nodes are exact copies of each other, so that their rotation is a symmetry."""
    ports, links = [], []
    num_ports = draw(st.integers(0, 2))
    port_costs = [draw(st.sampled_from(COSTS)) for _ in range(num_ports)]
    inside = [_drawn_link(draw, num_ports) for _ in shape.inside]
    between = [_drawn_link(draw, num_ports) for _ in shape.between]
    for node in range(shape.nodes):
        ports += [Port(f"node {node} port {i}", *cost) for i, cost in enumerate(port_costs)]
    for node in range(shape.nodes):
        base, there, first_port = node * shape.ranks, (1 - node) * shape.ranks, node * num_ports
        for (a, b), (cost, latency_us, used) in zip(shape.inside, inside, strict=True):
            links.append(Link(base + a, base + b, *cost, latency_us, tuple(first_port + i for i in used)))
        for (a, b), (cost, latency_us, used) in zip(shape.between, between, strict=True):
            links.append(Link(base + a, there + b, *cost, latency_us, tuple(first_port + i for i in used)))
    return _topology(shape, ports, links)


@st.composite
def odd_machine(draw, shape):
    """Machine in which every link and every port has costs of its own."""
    num_ports = draw(st.integers(0, 3))
    ports = [Port(f"port {i}", *draw(st.sampled_from(COSTS))) for i in range(num_ports)]
    links = []
    for node in range(shape.nodes):
        base, there = node * shape.ranks, (1 - node) * shape.ranks
        ends = [(base + a, base + b) for a, b in shape.inside] + [(base + a, there + b) for a, b in shape.between]
        for src, dst in ends:
            cost, latency_us, used = _drawn_link(draw, num_ports)
            links.append(Link(src, dst, *cost, latency_us, used))
    return _topology(shape, ports, links)


def _drawn_link(draw, num_ports):
    """Cost, latency and ports of a link."""
    used = draw(st.lists(st.integers(0, num_ports - 1), max_size=2, unique=True)) if num_ports else []
    return draw(st.sampled_from(COSTS)), draw(st.sampled_from(LATENCIES_US)), tuple(used)


def _topology(shape, ports, links):
    node_of = tuple(node for node in range(shape.nodes) for _ in range(shape.ranks))
    return Topology("drawn", "made up", node_of, tuple(ports), tuple(links))


@st.composite
def sketches(draw, shape, *, alike):
    """Sketch that does not contradict a machine of this shape; it may still leave no path for some chunk."""
    local = list(range(shape.ranks))
    strategy = draw(st.sampled_from(Strategy))
    if strategy is Strategy.SWITCH and shape.ranks < 2:
        strategy = Strategy.NONE
    switches = ()
    if strategy is Strategy.SWITCH:
        members = draw(st.lists(st.sampled_from(local), min_size=2, unique=True))
        switches = (SwitchGroup(tuple(members), draw(st.sampled_from(Policy))),)
    connections = _drawn_connections(draw, shape)
    relays = _drawn_relays(draw, shape, connections)
    return Sketch(
        name="drawn",
        strategy=strategy,
        switches=switches,
        links=_drawn_links(draw, shape),
        connections=connections,
        relays=relays,
        own_first=relays is not None and draw(st.booleans()),
        rotations=(Rotation(NODE, MACHINE),) if alike and draw(st.booleans()) else (),
        chunks_per_rank=draw(st.integers(1, 3)),
    )


def _drawn_links(draw, shape):
    """All local links, or the ring and some more, so that a node stays connected."""
    if shape.ranks < 2 or draw(st.booleans()):
        return None
    allowed = {r: {(r + 1) % shape.ranks} for r in range(shape.ranks)}
    for a, b in draw(st.lists(st.sampled_from(shape.inside), max_size=4)):
        allowed[a].add(b)
    return {a: tuple(sorted(b)) for a, b in allowed.items()}


def _drawn_connections(draw, shape):
    if shape.nodes == 1:
        return None
    words = [None, FULLY_CONNECTED] + ([DIRECT] if any(a == b for a, b in shape.between) else [])
    word = draw(st.sampled_from([*words, "listed"]))
    if word != "listed":
        return word
    kept = draw(st.lists(st.sampled_from(shape.between), min_size=1, unique=True))
    return {a: tuple(sorted({b for src, b in kept if src == a})) for a in sorted({a for a, _ in kept})}


def _drawn_relays(draw, shape, connections):
    """None, or a sender for every local rank's chunks."""
    if shape.nodes == 1 or draw(st.booleans()):
        return None
    senders = sorted(connections) if isinstance(connections, dict) else sorted({a for a, _ in shape.between})
    relays = {}
    for rank in range(shape.ranks):
        relays.setdefault(draw(st.sampled_from(senders)), []).append(rank)
    return {sender: tuple(ranks) for sender, ranks in relays.items()}


@st.composite
def cases(draw):
    """Everything that a request needs."""
    kind = draw(st.sampled_from(Kind))
    # A sketch names links as the routed collective uses them; sums run over the same links backwards.
    shape = draw(shapes(both_ways=kind in COMBINING))
    alike = draw(st.booleans())
    topology = draw(equal_nodes(shape) if alike else odd_machine(shape))
    sketch = draw(st.none() | sketches(shape, alike=alike))
    return Case(
        topology=topology,
        sketch=sketch,
        kind=kind,
        root=draw(st.integers(0, shape.num_ranks - 1)) if kind in ROOTED else 0,
        size_bytes=draw(st.sampled_from(SIZES)),
        chunks_per_rank=sketch.chunks_per_rank if sketch else draw(st.integers(1, 3)),
    )
