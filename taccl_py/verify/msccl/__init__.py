"""The verifier of MSCCL XML: will a file load, run without hanging and races, and give the right answer.

It is trusted: it shares no code with what makes such files, reads the text itself, and executes it symbolically.
"""

from taccl_py.verify.msccl.directory import Covered, DirectoryFile, DirectoryVerdict, verify_directory
from taccl_py.verify.msccl.verifier import ProgramFacts, ProgramVerdict, ProgramVerifier, verify_program

__all__ = [
    "Covered",
    "DirectoryFile",
    "DirectoryVerdict",
    "ProgramFacts",
    "ProgramVerdict",
    "ProgramVerifier",
    "verify_directory",
    "verify_program",
]
