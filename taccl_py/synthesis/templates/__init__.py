"""Known algorithms (direct, rings, trees, doubling, hierarchies) fitted to a machine, without a search."""
