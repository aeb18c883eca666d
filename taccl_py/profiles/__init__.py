"""Runtime profiles: what protocols, threadblocks and launch of a runtime cost on a kind of GPU; data, and how to read it."""
