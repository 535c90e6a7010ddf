"""How small can a TinyBERT get that tells a good film review from a bad one?"""

from studies._tinybert import tinybert_study

study_6x768 = tinybert_study("sst2", "6x768")  # maskfront run studies/sst2.py --study study_6x768
study = tinybert_study("sst2", "4x312")
