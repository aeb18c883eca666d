"""Machines: ranks, links between them, and ports that links share."""
