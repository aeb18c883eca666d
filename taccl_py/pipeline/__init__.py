"""The order of the stages: a request is resolved, searched for, and delivered.

::

    request -> resolve (machine, demand) -> search (schedule, bounds, proof) -> select (protocol, instances) -> deliver (program, text)

Everything that leaves here has passed its verifier; an error in it is an error of ours and is raised as such.
"""
