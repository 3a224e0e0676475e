"""Training in plain compiled loops: from a module to a table of its layers, and the loops that walk
it.
"""

from fedmf.training.compiled.chain import NotAChain
from fedmf.training.compiled.engine import Compiled, plan_of, program

__all__ = ["Compiled", "NotAChain", "plan_of", "program"]
