"""Predictions beside measurements that others made and published."""
