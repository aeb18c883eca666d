"""taccl_py: synthesize collective-communication algorithms for GPU clusters.

::

    topologies/*.json   sketches/*.json    "allgather", 16 MiB
           |                  |                    |
       topology/           sketch/           collective.py
           `------------------+--------------------'
                         synthesis/          engines (solvers/ = HiGHS, CBC, ..., CP-SAT)
                              |
                         schedule/           the IR: who sends which chunk over which link when
                     .--------+--------.
                 verify/  simulate/  lowering/  ->  MSCCL XML
"""

__version__ = "0.1.0"
