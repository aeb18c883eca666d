"""Small correct inputs, as JSON values that tests break in one place and then write to a file."""

import copy
import json

NODE_FORM = {
    "format": "taccl-topology",
    "version": 1,
    "name": "toy",
    "description": "two GPUs and a NIC",
    "source": "invented for tests",
    "node": {
        "ranks": 2,
        "links": [{"from": 0, "to": [1], "both_ways": True, "alpha_us": 1, "beta_us_per_mb": 10, "ports": ["bus.out"]}],
        "ports": [{"name": "bus", "alpha_us": 0, "bandwidth_gbps": 100}],
        "nics": [{"name": "nic", "ranks": "all", "alpha_us": 2, "beta_us_per_mb": 40}],
        "symmetry": [[1, 0]],
    },
    "network": {"reach": "all", "latency_us": 0.5},
}

EXPANDED = {
    "format": "taccl-topology",
    "version": 1,
    "name": "triangle",
    "source": "invented for tests",
    "node_of": [0, 0, 0],
    "ports": [{"name": "shared", "alpha_us": 0.5, "beta_us_per_mb": 5}],
    "links": [
        {"from": a, "to": b, "alpha_us": 1, "beta_us_per_mb": 10, "ports": [0]}
        for a in range(3)
        for b in range(3)
        if a != b
    ],
    "symmetry": [[1, 2, 0]],
}

# TACCL's profile of a node in which every pair is linked, and one given by matrices.
PROFILE = {
    "name": "hub",
    "alpha": 2.0,
    "gpus_per_node": 4,
    "node_betas_list": [10.0],
    "node_invbws_list": [12.0],
    "nics_per_node": 1,
    "remote_alpha": 2.0,
    "remote_beta": 40.0,
    "remote_invbw": 42.0,
}
MATRICES = {
    "name": "pair",
    "alpha": 1.0,
    "gpus_per_node": 2,
    "links": [[0, 1], [1, 0]],
    "betas": [[0, 1], [1, 0]],
    "invbws": [[0, 2], [2, 0]],
}

SKETCH = {
    "format": "taccl-sketch",
    "version": 1,
    "name": "through-0",
    "intra_node": {"strategy": "none"},
    "inter_node": {"connections": {"0": [1]}, "relays": {"0": [0, 1]}},
    "symmetry": {"rotations": [{"by": "node", "within": "machine"}], "permutations": []},
    "chunks_per_rank": 1,
}

TACCL_SKETCH = {
    "nnodes": 2,
    "intranode_sketch": {
        "strategy": "switch",
        "switches": [[0, 1, 2, 3]],
        "switch_hyperedge_strategy": ["uc-max"],
    },
    "internode_sketch": {
        "strategy": "relay",
        "internode_conn": {"0": [1]},
        "gpus_to_sender_rev_map": {"0": [0, 1, 2, 3]},
    },
    "symmetry_offsets": [[4, 8]],
    "hyperparameters": {"input_chunkup": 1},
}
TACCL_SKETCH_OF_ONE = {
    "nnodes": 1,
    "intranode_sketch": {"strategy": "none"},
    "symmetry_offsets": [],
    "hyperparameters": {"input_chunkup": 1},
}

MISSING = object()


def changed(value, place, new):
    """Copy of a JSON value with the field at ``a.0.b`` set, or taken away if `new` is MISSING."""
    result = copy.deepcopy(value)
    *way, last = [int(part) if part.isdecimal() else part for part in place.split(".")]
    holder = result
    for part in way:
        holder = holder[part]
    if new is MISSING:
        del holder[last]
    else:
        holder[last] = new
    return result


def write_json(path, value):
    """Write a value (NaN and infinities as Python writes them) and return its name."""
    path.write_text(json.dumps(value), encoding="utf-8")
    return path.name
