"""Run it: programs executed on real data, and the result compared with what the collective promises.

This shares nothing with what makes, verifiers or times programs: it reads the text itself and moves real numbers.
"""
