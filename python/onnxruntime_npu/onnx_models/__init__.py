"""What export and conversion both do with ONNX models: tidy graphs, fuse norms, write files."""
