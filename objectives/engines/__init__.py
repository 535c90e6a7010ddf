"""Engines that run a finished model: torch and onnxruntime, in float32 or fewer bits."""
