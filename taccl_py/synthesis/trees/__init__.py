"""Engine ``trees``: spanning-tree packing, for sizes at which throughput rules."""
