"""Prints what ORT_NPU_ISA may be on this machine besides its widest level, for `make bench`."""

from onnxruntime_npu import _C

LEVELS = ["amx", "avx512", "avx2"]

if __name__ == "__main__":
    print(*LEVELS[LEVELS.index(_C.isa()) + 1 :] if _C.isa() in LEVELS else [])
