"""Demands: what must move as data, for what is none of the eight collectives.

A demand says of every chunk how large it is, who holds it or whose contributions are added up to it, who wants it, and where it lies in
which buffer. The eight collectives are demands too (`of_collective`), as are AllToAllv, AllGatherv, ReduceScatterv, sends between pairs of
ranks (`variable`), and the change of a tensor's sharding between two meshes (`reshard`).
"""

from __future__ import annotations

from taccl_py.demand.model import DTYPES, ChunkPlace, DataChunk, DataDemand, dtype_named

__all__ = ["DTYPES", "ChunkPlace", "DataChunk", "DataDemand", "dtype_named"]
