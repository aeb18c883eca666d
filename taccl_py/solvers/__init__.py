"""Mathematics only: knows nothing of collectives."""
