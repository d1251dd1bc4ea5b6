"""The bytes of one npu tensor over another's. Source: torch_npu.copy_memory_."""

from onnxruntime_npu.opdef import FLOATS, INTEGERS, check, composition, torch

op = composition(
    "copy_memory_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)",
    dtypes=[*FLOATS, *INTEGERS, "bool"],
)


@op.function
def copy_memory_(self, src, non_blocking=False):
    """Copy src's elements, in their order in memory, over self's and return self.

    self, src: npu tensors of one device and dtype, of any shapes; src, from its first element on,
    has at least as many elements in memory as self. Waits for the copy unless non_blocking.
    """
    check(
        self.device.type == src.device.type == "npu" and self.device == src.device,
        f"[copy_memory_] expected self and src on one npu, got {self.device} and {src.device}",
    )
    check(
        self.dtype == src.dtype,
        f"[copy_memory_] expected src of the dtype of self, {self.dtype}, got {src.dtype}",
    )
    count = self.numel()
    for name, tensor in (("self", self), ("src", src)):
        room = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
        check(
            room >= count,
            f"[copy_memory_] expected {name} with {count} elements in memory, got {room}",
        )
    to, of = (t.as_strided((count,), (1,), t.storage_offset()) for t in (self, src))
    to.copy_(of, non_blocking=non_blocking)
    if not non_blocking:
        torch.npu.current_stream(self.device).synchronize()
    return self


# Only npu tensors can be copied: tests/ops/test_composition_partners.py.
