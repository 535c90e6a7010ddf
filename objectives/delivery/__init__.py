"""Delivery: checked ONNX files, folders that answer without torch, and milliseconds of whole
models."""
