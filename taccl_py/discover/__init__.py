"""Topologies from other tools' dumps, matrices and files. Nothing is measured here."""
