"""Run it: programs executed on real data, and the result compared with what the collective promises.

The executors share nothing with code that makes, verifies or times programs: they read the text themselves and move real numbers.
"""
