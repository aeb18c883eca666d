"""Damaged machines: plans of the whole machine, with as much on what is slow or gone as it still carries."""
