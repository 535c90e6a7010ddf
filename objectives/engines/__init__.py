"""What runs a model that is done: torch, onnxruntime; each in float32 or in less."""
