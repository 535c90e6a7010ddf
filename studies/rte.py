"""How small can a TinyBERT get that tells whether one text follows from another?"""

from studies._tinybert import tinybert_study

study_6x768 = tinybert_study("rte", "6x768")  # maskfront run studies/rte.py --study study_6x768
study = tinybert_study("rte", "4x312")
