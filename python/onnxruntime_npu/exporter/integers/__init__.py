"""Checkpoints of integers: GPTQ, AWQ, auto-round, BitNet, compressed-tensors, GGUF."""
