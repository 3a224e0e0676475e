"""Training in compiled loops.

`chain` reads the layers of a module, `step_plan` lays them out as a table, `steps` are the loops
that walk it, and `engine` trains groups of users by them.
"""

from fedmf.training.compiled.chain import NotAChain
from fedmf.training.compiled.engine import CompiledEngine, program_of

__all__ = ["CompiledEngine", "NotAChain", "program_of"]
