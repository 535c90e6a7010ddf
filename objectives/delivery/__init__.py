"""What leaves: ONNX files, checked, and the milliseconds of whole models."""
