"""The verifier of MSCCL++ execution plans: does a plan load, end, respect its memory, and give the right answer.

It is trusted: it shares no code with what makes plans, reads the JSON itself, and executes it symbolically.
"""

from taccl_py.verify.mscclpp.directory import PlanFolderVerdict, verify_plan_folder
from taccl_py.verify.mscclpp.grammar import is_plan
from taccl_py.verify.mscclpp.verifier import PlanFacts, PlanVerdict, verify_plan

__all__ = ["PlanFacts", "PlanFolderVerdict", "PlanVerdict", "is_plan", "verify_plan", "verify_plan_folder"]
