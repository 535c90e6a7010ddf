"""How small can a TinyBERT get that tells English sentences from non-sentences?"""

from studies._tinybert import tinybert_study

study_6x768 = tinybert_study("cola", "6x768")  # maskfront run studies/cola.py --study study_6x768
study = tinybert_study("cola", "4x312")
