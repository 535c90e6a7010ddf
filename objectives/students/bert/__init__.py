"""BERT: checkpoints in, architectures, the cut model, exported folders.

Importing it makes the cut model known to transformers, so that
`AutoModelForSequenceClassification.from_pretrained` loads one without custom code.
"""

from transformers import AutoConfig, AutoModelForSequenceClassification

from objectives.students.bert.pruned_bert import (
    PrunedBertConfig,
    PrunedBertForSequenceClassification,
)

AutoConfig.register(PrunedBertConfig.model_type, PrunedBertConfig)
AutoModelForSequenceClassification.register(PrunedBertConfig, PrunedBertForSequenceClassification)
