"""What tests ask of a schedule beside its correctness, read from its messages alone."""


def breaks_own_first(schedule, sketch):
    """Links between nodes on which a chunk that the sender relays starts before one of its own, if the sketch forbids it."""
    if sketch is None or not sketch.own_first:
        return []
    topology, source = schedule.topology, schedule.collective.source
    broken = []
    for index, link in enumerate(topology.links):
        if topology.node_of[link.src] == topology.node_of[link.dst]:
            continue
        starts = {True: [], False: []}
        for message in schedule.messages:
            if message.link == index:
                for chunk in message.chunks:
                    starts[source[chunk] == link.src].append(message.start_us)
        if max(starts[True], default=0.0) > min(starts[False], default=float("inf")):
            broken.append((link.src, link.dst))
    return broken


def pairs_inside_nodes(schedule):
    """Pairs of ranks of one node that talk at all."""
    topology = schedule.topology
    used = {(topology.links[message.link].src, topology.links[message.link].dst) for message in schedule.messages}
    return {(src, dst) for src, dst in used if topology.node_of[src] == topology.node_of[dst]}


def load_inside_nodes(schedule):
    """Chunks carried by every link inside a node."""
    topology = schedule.topology
    load = {
        index: 0
        for index, link in enumerate(topology.links)
        if topology.node_of[link.src] == topology.node_of[link.dst]
    }
    for message in schedule.messages:
        if message.link in load:
            load[message.link] += len(message.chunks)
    return load
