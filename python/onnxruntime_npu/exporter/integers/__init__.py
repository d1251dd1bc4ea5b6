"""Checkpoints whose weights are integers: GPTQ, AWQ, auto-round, compressed-tensors, GGUF."""
