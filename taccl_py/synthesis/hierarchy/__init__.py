"""Hierarchy: clusters of nodes, solved inside nodes and between them, and put together again."""
