"""Demands of others with figures to meet: AlpaComm's reshardings, StragglAR's AllReduce, and skewed AllToAllv between nodes."""

from taccl_py.demand.reshard import Sharding, parse_shape, parse_sharding, reshard
from tests.demand.cases import hosts, stragglar, switch

# Zhuang et al., On Optimizing the Communication of Model Parallelism, 2022: shape, from, to, bound in ms at 10 Gb/s between hosts.
ALPA = {
    1: ("1024x1024x512", "0-7:2x4:S0,R", "8-15:2x4:S0,R", 859.0),
    2: ("1024x1024x512", "0-7:2x4:R,R", "8-15:2x4:S0,R", 859.0),
    3: ("1024x1024x512", "0-7:2x4:S1,R", "8-15:2x4:S0,R", 859.0),
    4: ("1024x1024x512", "0-7:2x4:S1,S1", "8-15:2x4:S0,S0", 859.0),
    5: ("1024x1024x512", "0-7:2x4:R,S0", "8-15:2x4:S0,R", 859.0),
    6: ("3072x1024x170", "0-7:2x4:S0,R", "8-19:3x4:S0,R", 855.6),
    7: ("1024x1024x512", "0-3:1x4:R,S0", "4-11:2x4:R,R", 1718.0),
    8: ("1024x1024x512", "0-3:1x4:S0,R", "4-11:2x4:R,R", 1718.0),
    9: ("1024x1024x512", "0-7:2x4:S1,R", "8-15:2x4:S2,R", 859.0),
}
# 1 GiB from one host to m: time of a ring of 100 pieces, in ms.
ONE_TO_MANY = {1: 859.0, 2: 868.0, 3: 876.0, 4: 885.0}
# arXiv 2505.23523: AllReduce with n-1 ranks reduced takes so many steps of alpha + beta size / (n - 1).
STRAGGLAR_STEPS = {4: 4, 6: 7, 8: 9, 12: 15, 16: 18, 24: 27, 32: 35}
_ALPHA_US, _BETA, _GIB = 3.0, 1e12 / (450 * 2**30), 1 << 30


def alpa_case(case):
    """Machine and demand of one of AlpaComm's nine cases, their bound in ms, and how far above it is allowed."""
    shape, source, target, bound_ms = ALPA[case]
    topology = hosts({6: 5, 7: 3, 8: 3}.get(case, 4))
    found = reshard(parse_shape(shape), "float32", parse_sharding(source), parse_sharding(target), topology.num_ranks)
    return topology, found.demand, bound_ms, 1.0001 if case == 4 else 1.02


def one_to_many(number):
    """Machine and demand of 1 GiB from one host to two GPUs on each of some others."""
    topology = hosts(number + 1)
    ranks = tuple(4 * host + gpu for host in range(1, number + 1) for gpu in (0, 1))
    target = Sharding(ranks, (number, 2), ("R", "R"))
    return topology, reshard((1024, 1024, 256), "float32", parse_sharding("0:1:R"), target, topology.num_ranks).demand


def stragglar_case(ranks):
    """Machine and demand of StragglAR's table (alpha 3 us, 450 GiB/s, 1 GiB), and its time in us."""
    time_us = STRAGGLAR_STEPS[ranks] * (_ALPHA_US + _BETA * _GIB / 1e6 / (ranks - 1))
    return switch(ranks, _ALPHA_US, _BETA), stragglar(ranks, _GIB), time_us
