"""Delivery: checked ONNX files, folders that answer without torch, times of whole models."""
