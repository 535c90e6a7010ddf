"""AutoBERT-Zero: its method, its space of layers, its bi-branch super-net."""
