"""ENAS (Pham et al. 2018): a controller draws cells, and all of them share one super-net.

The cell that it finds is trained anew. What differs from the paper's code: the rows are texts and
the super-net learns from the teacher's answers; a score is exp(-loss), where the code has the
accuracy, less the FLOPs loss; all candidates meet the same rows of alpha, there one batch each. An
edge has weights of its own for each operation, whatever state it reads, and norms what it reads. A
recurrent cell begins with a tanh, which the paper chooses. The entropy counts, as in one of the
code's two modes.
"""

from dataclasses import dataclass

from objectives.strategies.controller_search import ControllerSearch


@dataclass(frozen=True, kw_only=True)
class Enas(ControllerSearch):
    """Search by a controller over the cells of a super-net."""
