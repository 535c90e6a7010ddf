"""Families of students. To add one, import it here and add it to `FAMILIES`."""

from transformers import PreTrainedModel

from objectives.errors import UserError
from objectives.students.bert import BERT
from objectives.students.cells import CELLS
from objectives.students.family import Architecture, Family

FAMILIES: tuple[Family, ...] = (BERT, CELLS)


def family_of(model: PreTrainedModel) -> Family:
    """Family of a model. Raises UserError if there is none."""
    kind = model.config.model_type
    for family in FAMILIES:
        if kind in family.model_types:
            return family
    names = ", ".join(name for family in FAMILIES for name in family.model_types)
    raise UserError(f"it is of the kind '{kind}'; maskfront has models of the kinds {names}")


def family_for(architecture: Architecture) -> Family:
    """Family of an architecture."""
    return next(f for f in FAMILIES if isinstance(architecture, f.architecture))
