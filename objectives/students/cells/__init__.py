"""Cells: students that are no BERT, blocks of operations over a sequence.

Importing it makes them known to transformers, so that
`AutoModelForSequenceClassification.from_pretrained` loads one without custom code.
"""

from transformers import AutoConfig, AutoModelForSequenceClassification

from objectives.students.cells.cell_classifier import CellConfig, CellForSequenceClassification

AutoConfig.register(CellConfig.model_type, CellConfig)
AutoModelForSequenceClassification.register(CellConfig, CellForSequenceClassification)
