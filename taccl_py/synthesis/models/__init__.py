"""Exact models over a quotient, one file each; engines choose among them."""
