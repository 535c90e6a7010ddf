"""Cells: students that are no BERT, blocks of operations over a sequence.

Importing it lets `AutoModelForSequenceClassification` load one without custom code."""

from objectives.students.cells.cell_classifier import CellConfig, CellForSequenceClassification
from objectives.students.cells.genotype import Genotype
from objectives.students.family import Family

CELLS = Family(
    config=CellConfig,
    model=CellForSequenceClassification,
    architecture=Genotype,
    noun="classifier of a few operations",
)
CELLS.register()
