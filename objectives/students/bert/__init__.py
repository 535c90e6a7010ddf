"""BERT: checkpoints in, architectures, the cut model, exported folders.

Importing it makes the cut model known to transformers, so that
`AutoModelForSequenceClassification.from_pretrained` loads one without custom code.
"""

from objectives.students.bert.family import BERT as BERT

BERT.register()
