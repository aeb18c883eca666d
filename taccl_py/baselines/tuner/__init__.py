"""Files that tell a library which of its own algorithms to use at which size, made of a comparison.

::

    rules_of        a comparison -> ranges of sizes with the fastest algorithm that the library has
    nccl_csv        NCCL's example tuner plug-in
    ncclx           the tuner that NCCLX has built in: CSV and JSON
    open_mpi        Open MPI 6: dynamic rules of coll/tuned, JSON
    ucc             UCC: UCC_TL_UCP_TUNE
    tuner_file      rules -> the text of a target, read back
"""

from taccl_py.baselines.tuner.rules import TunerRule, TunerTarget, require_choice, rules_of
from taccl_py.baselines.tuner.tuner_file import TunerFile, read_tuner, tuner_file

__all__ = ["TunerFile", "TunerRule", "TunerTarget", "read_tuner", "require_choice", "rules_of", "tuner_file"]
