"""Python interface: load a machine, synthesize, verify, lower, predict, run. `taccl_py` exports its names.

Defaults that depend on the question (engine, time limit, runtime, runtime profile) are decided here, for scripts and for the
command line.
"""
