"""Checkpoints whose weights are integers: GPTQ, AWQ, compressed-tensors, GGUF."""
