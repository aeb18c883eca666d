"""What the user knows: links to use, relays, symmetry, chunking."""
