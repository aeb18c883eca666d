"""Engine ``flow``: multicommodity flow, rounded to chunks and paths, for AllToAll at sizes at which throughput rules."""
