"""Sketches, the user's hints: links to use, relays, symmetry, chunking."""
