"""What one trial is: task, student, masks, cost, stages, the cut model. Knows torch, never optuna.

Importing it makes the cut model known to transformers, so that
`AutoModelForSequenceClassification.from_pretrained` loads one without custom code.
"""

from transformers import AutoConfig, AutoModelForSequenceClassification

from objectives.bert.pruned_bert import PrunedBertConfig, PrunedBertForSequenceClassification

AutoConfig.register(PrunedBertConfig.model_type, PrunedBertConfig)
AutoModelForSequenceClassification.register(PrunedBertConfig, PrunedBertForSequenceClassification)
