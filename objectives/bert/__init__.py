"""BERT: checkpoints in, architectures, the cut model, exported folders."""
