"""Best packings of small machines by linear programs over all trees and all paths."""

from itertools import product

import numpy as np

from taccl_py.solvers.columns import ColumnProgram


def trees_of(topology, root, into=False):
    """All spanning trees out of a root, or into it, each as its links."""
    arcs = [(link.dst, link.src) if into else (link.src, link.dst) for link in topology.links]
    entering = [
        [number for number, (_, head) in enumerate(arcs) if head == rank]
        for rank in range(topology.num_ranks)
        if rank != root
    ]
    return [links for links in product(*entering) if _reaches_all([arcs[link] for link in links], root)]


def _reaches_all(arcs, root):
    reached, found = {root}, True
    while found:
        found = {head for tail, head in arcs if tail in reached} - reached
        reached |= found
    return len(reached) == len(arcs) + 1


def paths_between(topology, source, sink):
    """All simple paths, each as its links."""
    found, growing = [], [((), (source,))]
    while growing:
        links, ranks = growing.pop()
        if ranks[-1] == sink:
            found.append(links)
            continue
        for number, link in enumerate(topology.links):
            if link.src == ranks[-1] and link.dst not in ranks:
                growing.append(((*links, number), (*ranks, link.dst)))
    return found


def load(topology, links):
    """Time of every link and port for a megabyte over each of some links, [resource]."""
    loads = np.zeros(topology.num_resources)
    for link in links:
        for resource in topology.resources_of[link]:
            loads[resource] += topology.resource_cost[resource][1]
    return loads


def best_packing_us(topology, columns_of_share, demands):
    """Least time of the fullest resource when each share's demand is split over some of its columns, given by their links."""
    program = ColumnProgram(demands, topology.num_resources)
    for share, columns in enumerate(columns_of_share):
        for links in columns:
            program.add(share, load(topology, links))
    return program.solve().objective


def best_trees_us(topology, roots):
    """That of trees from some roots, which have equal parts of a megabyte."""
    return best_packing_us(topology, [trees_of(topology, root) for root in roots], [1 / len(roots)] * len(roots))


def best_paths_us(topology, sink):
    """That of paths to a sink from all ranks, which have equal parts of a megabyte."""
    ranks = topology.num_ranks
    sources = [rank for rank in range(ranks) if rank != sink]
    return best_packing_us(
        topology, [paths_between(topology, rank, sink) for rank in sources], [1 / ranks] * len(sources)
    )


def best_sums_us(topology):
    """That of trees into any root and out of it."""
    pairs = [
        (*gathering, *handing)
        for root in range(topology.num_ranks)
        for gathering, handing in product(trees_of(topology, root, into=True), trees_of(topology, root))
    ]
    return best_packing_us(topology, [pairs], [1.0])
