"""The overflow status of a device, which computes with infinities and therefore has none.

Source: torch_npu.npu_alloc_float_status, npu_get_float_status, npu_clear_float_status.
"""

from onnxruntime_npu.opdef import Sample, check, check_dtype, composition, torch

_WORDS = 8

alloc = composition("npu_alloc_float_status(Tensor self) -> Tensor", dtypes=["float32"])
get = composition("npu_get_float_status(Tensor self, int mode=0) -> Tensor", dtypes=["float32"])
clear = composition("npu_clear_float_status(Tensor self, int mode=0) -> Tensor", dtypes=["float32"])


def _none(op, status, mode):
    check_dtype(op, "self", status, ["float32"])
    check(
        list(status.shape) == [_WORDS],
        f"[{op}] expected self of shape [{_WORDS}], as npu_alloc_float_status gives it, "
        f"got {list(status.shape)}",
    )
    check(mode in (0, 1), f"[{op}] expected mode 0 (normal) or 1 (debug), got {mode}")
    return torch.zeros_like(status)


@alloc.function
def npu_alloc_float_status(self):
    """Return a status of [8] zeros, float32, on self's device."""
    return torch.zeros(_WORDS, dtype=torch.float32, device=self.device)


@get.function
def npu_get_float_status(self, mode=0):
    """Return the status, [8] float32: zeros, for an overflow is an infinity in the results.

    self: a status; mode: 0 normal, 1 debug. torch.npu.get_npu_overflow_flag tells of infinities.
    """
    return _none("npu_get_float_status", self, mode)


@clear.function
def npu_clear_float_status(self, mode=0):
    """Return the status after clearing it, [8] zeros of float32."""
    return _none("npu_clear_float_status", self, mode)


@alloc.samples
def alloc_samples(make):
    yield Sample(make(3), id="catalogue", expect=[[0] * 8])


@get.samples
@clear.samples
def samples(make):
    yield Sample(make(8), id="catalogue", expect=[[0] * 8])
    yield Sample(make(8), 1, id="debug", expect=[[0] * 8])


for _op in (get, clear):
    _op.errors(
        lambda make: Sample(make(8), 2),
        match=rf"\[{_op.name}\] expected mode 0 \(normal\) or 1 \(debug\), got 2",
        id="mode",
    )
    _op.errors(
        lambda make: Sample(make(4)),
        match=rf"\[{_op.name}\] expected self of shape \[8\], .* got \[4\]",
        id="shape",
    )
