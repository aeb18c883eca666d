"""What other tools know about a machine: their dumps, matrices and files become topologies. Nothing is measured here."""
