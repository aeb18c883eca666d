"""Engines, which turn a demand into a schedule."""
