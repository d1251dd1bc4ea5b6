"""Prints the values of ORT_NPU_ISA below this machine's highest level, for `make bench`."""

from onnxruntime_npu import _C

LEVELS = ["amx", "avx512", "avx2"]

if __name__ == "__main__":
    print(*LEVELS[LEVELS.index(_C.isa()) + 1 :] if _C.isa() in LEVELS else [])
