"""Schedules: timed messages, each with its chunks and its link."""
