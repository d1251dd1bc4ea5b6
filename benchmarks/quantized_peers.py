"""Matmuls with quantised weights of torch, OpenVINO and llama.cpp, for quantized_matmul.py.

The weights are the same integers and scales. Imported in the peers' environment, by the engines'
processes only.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matmul import Layers, rows_of
from quantized_weights import (
    group_of,
    integers_of,
    layers_of,
    nibbles,
    relative_error,
    scales_of,
)


class QuantisedPeer(Layers):
    """One shape of one scheme at a time."""

    def __init__(self, scheme: str, threads: int) -> None:
        super().__init__("float32", threads)
        self.scheme = scheme
        self.m = 0

    def set_shape(self, k: int, n: int) -> None:
        if self.shape != (k, n):
            self.shape, self.k, self.n, self.m = (k, n), k, n, 0
            count = layers_of(self.scheme, k, n)
            self.load_integers(integers_of(self.scheme, k, n, count), scales_of(self.scheme, k, n))

    def load_integers(self, integers: np.ndarray, scales: np.ndarray) -> None:
        """Create the weights from integers [layers, k, n] and their scales [groups, n]."""
        raise NotImplementedError

    def error(self, k: int, n: int, m: int) -> np.ndarray:
        """The relative error of the last product against float64."""
        self.set_shape(k, n)
        self.once(m)
        return relative_error(self.scheme, k, n, m, self.last_product())


class Torch(QuantisedPeer):
    """torch's own: int8 and int4 by bfloat16, and dynamically quantised linear layers."""

    def __init__(self, scheme: str, threads: int) -> None:
        import warnings

        import torch

        super().__init__(scheme, threads)
        torch.set_num_threads(threads)
        warnings.simplefilter("ignore")  # its quantised tensors are deprecated
        self.torch = torch
        self.type = torch.float32 if scheme == "w8a8" else torch.bfloat16

    def load_integers(self, integers: np.ndarray, scales: np.ndarray) -> None:
        torch = self.torch
        rows = [torch.from_numpy(np.ascontiguousarray(w.T)) for w in integers]
        by_column = torch.from_numpy(scales.copy())
        if self.scheme == "w8a16":
            self.weights = [(w, by_column[0].bfloat16()) for w in rows]
            self.product = torch.ops.aten._weight_int8pack_mm
        elif self.scheme == "w4a16":
            pack = torch.ops.aten._convert_weight_to_int4pack_for_cpu
            zeros = torch.zeros_like(by_column)
            pairs = torch.stack((by_column, zeros), -1).bfloat16()
            self.weights = [(pack(w.int() + 8, 2), group_of(self.k), pairs) for w in rows]
            self.product = torch.ops.aten._weight_int4pack_mm_for_cpu
        else:
            torch.backends.quantized.engine = "onednn"
            zeros = torch.zeros(self.n, dtype=torch.int64)
            quantised = (
                torch._make_per_channel_quantized_tensor(w, by_column[0].double(), zeros, 0)
                for w in rows
            )
            pack = torch.ops.quantized.linear_prepack
            self.weights = [(pack(q, None),) for q in quantised]
            self.product = torch.ops.quantized.linear_dynamic

    def once(self, m: int) -> None:
        if m != self.m:
            self.m, self.x = m, self.torch.from_numpy(rows_of(m, self.k)).to(self.type)
        with self.torch.inference_mode():
            for weight in self.weights:
                self.last = self.product(self.x, *weight)

    def last_product(self) -> np.ndarray:
        return self.last.float().numpy()


class OpenVino(QuantisedPeer):
    """Compressed weights of a compiled model, with activations of bfloat16 or quantised in it."""

    def __init__(self, scheme: str, threads: int, quantises: bool) -> None:
        super().__init__(scheme, threads)
        self.quantises = quantises

    def load_integers(self, integers: np.ndarray, scales: np.ndarray) -> None:
        import openvino as ov
        from openvino import opset13 as ops

        x = ops.parameter([-1, self.k], np.float32, name="x")
        results, self.packed = [], []  # constants of int4 read the arrays' memory
        for weight in integers:
            rows = np.ascontiguousarray(weight.T)
            if self.scheme == "w4a16":
                group = group_of(self.k)
                shape = [self.n, self.k // group, group]
                packed = np.ascontiguousarray(nibbles(rows.view(np.uint8) & 15))
                self.packed.append(packed)
                constant = ops.constant(ov.Tensor(packed, shape, ov.Type.i4))
                factors = scales.T[:, :, None]
            else:
                constant, factors = ops.constant(rows), scales.T
            values = ops.multiply(
                ops.convert(constant, "f32"), ops.constant(np.ascontiguousarray(factors))
            )
            if self.scheme == "w4a16":
                values = ops.reshape(values, ops.constant(np.array([self.n, -1])), False)
            results.append(ops.matmul(x, values, False, True))
        self.compiled = ov.Core().compile_model(
            ov.Model(results, [x], "layers"),
            "CPU",
            {
                "INFERENCE_NUM_THREADS": self.threads,
                "NUM_STREAMS": 1,
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": "f32" if self.quantises else "bf16",
                "DYNAMIC_QUANTIZATION_GROUP_SIZE": group_of(self.k) * self.quantises,
            },
        )
        self.request = self.compiled.create_infer_request()

    def once(self, m: int) -> None:
        if m != self.m:
            self.m, self.x = m, rows_of(m, self.k)
        self.request.infer([self.x], share_inputs=True, share_outputs=True)

    def last_product(self) -> np.ndarray:
        last = len(self.compiled.outputs) - 1
        return np.array(self.request.get_output_tensor(last).data, np.float32)


class LlamaCpp(QuantisedPeer):
    """ggml's q4_0 and q8_0, blocks of 32, in the buffer whose layout its CPU backend prefers."""

    TYPES: ClassVar = {"w4a16": 2, "w8a16": 8, "w8a8": 8}
    BLOCK = 32

    def __init__(self, scheme: str, threads: int) -> None:
        super().__init__(scheme, threads)
        import llama_cpp

        folder = Path(llama_cpp.__file__).parent / "lib"
        base, cpu, whole = (
            ctypes.CDLL(str(folder / f"lib{name}.so"), ctypes.RTLD_GLOBAL)
            for name in ("ggml-base", "ggml-cpu", "ggml")
        )
        del whole
        self.base = base
        self.log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
            lambda *_: None
        )
        base.ggml_log_set(self.log, None)
        self.backend = self._call(cpu, "ggml_backend_cpu_init")
        cpu.ggml_backend_cpu_set_n_threads(ctypes.c_void_p(self.backend), threads)
        self.contexts: list[int] = []
        self.buffers: list[int] = []

    @staticmethod
    def _call(library: ctypes.CDLL, name: str, *arguments: Any) -> int:
        """Call a function that returns a pointer; integers are pointers, too."""
        function = getattr(library, name)
        function.restype = ctypes.c_void_p
        return function(*(ctypes.c_void_p(a) if isinstance(a, int) else a for a in arguments))

    def _context(self) -> int:
        class Parameters(ctypes.Structure):
            _fields_ = (
                ("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)
            )  # fmt: skip

        context = self._call(self.base, "ggml_init", Parameters(4 << 20, None, True))
        self.contexts.append(context)
        return context

    def _tensor(self, context: int, kind: int, columns: int, rows: int) -> int:
        sizes = ctypes.c_int64(columns), ctypes.c_int64(rows)
        return self._call(self.base, "ggml_new_tensor_2d", context, ctypes.c_int(kind), *sizes)

    def _preferred(self) -> int:
        """The buffer type for weights: repacked ones, where ggml has kernels for them."""
        device = self._call(self.base, "ggml_backend_get_device", self.backend)
        registry = self._call(self.base, "ggml_backend_dev_backend_reg", device)
        name = ctypes.c_char_p(b"ggml_backend_dev_get_extra_bufts")
        address = self._call(self.base, "ggml_backend_reg_get_proc_address", registry, name)
        get = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)
        types, found = get(device), []
        while types and types[len(found)]:
            found.append(types[len(found)])
        self.base.ggml_backend_buft_name.restype = ctypes.c_char_p
        for each in found:
            name_of_type = self.base.ggml_backend_buft_name(ctypes.c_void_p(each))
            if b"REPACK" in name_of_type and self.scheme == "w4a16":  # none for q8_0 on x86
                return each
        return self._call(self.base, "ggml_backend_dev_buffer_type", device)

    def _blocks(self, rows: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Integers [n, k] and scales [groups, n] as bytes of blocks, each with its scale."""
        n, k = rows.shape
        of_group = group_of(k) if self.scheme == "w4a16" else k
        starts = np.arange(0, k, self.BLOCK) // of_group
        factors = np.ascontiguousarray(scales.T[:, starts].astype(np.float16))
        blocks = rows.reshape(n, -1, self.BLOCK)
        if self.scheme == "w4a16":
            unsigned = (blocks + 8).astype(np.uint8)
            elements = unsigned[..., :16] | unsigned[..., 16:] << 4
        else:
            elements = blocks.view(np.uint8)
        return np.concatenate((factors[..., None].view(np.uint8), elements), -1)

    def load_integers(self, integers: np.ndarray, scales: np.ndarray) -> None:
        self._release()
        context, kind = self._context(), self.TYPES[self.scheme]
        self.weights = [self._tensor(context, kind, self.k, self.n) for _ in integers]
        allocate = "ggml_backend_alloc_ctx_tensors_from_buft"
        self.buffers.append(self._call(self.base, allocate, context, self._preferred()))
        for tensor, weight in zip(self.weights, integers, strict=True):
            data = np.ascontiguousarray(self._blocks(np.ascontiguousarray(weight.T), scales))
            self._set(tensor, data)

    def _set(self, tensor: int, data: np.ndarray) -> None:
        self.base.ggml_backend_tensor_set(
            ctypes.c_void_p(tensor), data.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(0),
            ctypes.c_size_t(data.nbytes),
        )  # fmt: skip

    def _release(self, keep: int = 0) -> None:
        for buffer in self.buffers[keep:]:
            self.base.ggml_backend_buffer_free(ctypes.c_void_p(buffer))
        for context in self.contexts[keep:]:
            self.base.ggml_free(ctypes.c_void_p(context))
        del self.buffers[keep:], self.contexts[keep:]

    def once(self, m: int) -> None:
        if m != self.m:
            self.m = m
            self._release(keep=1)
            context = self._context()
            x = self._tensor(context, 0, self.k, m)
            self.graph = self._call(self.base, "ggml_new_graph", context)
            for weight in self.weights:
                self.y = self._call(self.base, "ggml_mul_mat", context, weight, x)
                self.base.ggml_build_forward_expand(
                    ctypes.c_void_p(self.graph), ctypes.c_void_p(self.y)
                )
            allocate = "ggml_backend_alloc_ctx_tensors"
            self.buffers.append(self._call(self.base, allocate, context, self.backend))
            self._set(x, rows_of(m, self.k))
        status = self.base.ggml_backend_graph_compute(
            ctypes.c_void_p(self.backend), ctypes.c_void_p(self.graph)
        )
        if status != 0:
            raise RuntimeError(f"ggml_backend_graph_compute gives {status}")

    def last_product(self) -> np.ndarray:
        y = np.empty((self.m, self.n), np.float32)
        self.base.ggml_backend_tensor_get(
            ctypes.c_void_p(self.y), y.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(0),
            ctypes.c_size_t(y.nbytes),
        )  # fmt: skip
        return y


ENGINES = {
    "torch": Torch,
    "openvino": functools.partial(OpenVino, quantises=False),
    "openvino-int8": functools.partial(OpenVino, quantises=True),
    "llama.cpp": LlamaCpp,
}
