"""Host scalars with tensors on a device that is not the current one."""

CODE = """
import torch, onnxruntime_npu
from onnxruntime_npu import torch_device

two, zero, truth = torch.tensor(2.0), torch.tensor(0.0), torch.tensor(True)
index = lambda a: torch.tensor([0], device=a.device)
CALLS = {
    "where": lambda a: torch.where(a > 0, a, zero),
    "where, condition": lambda a: torch.where(truth, a, zero),
    "where, out": lambda a: torch.where(a > 2, a, two, out=torch.empty_like(a)),
    "index_put": lambda a: a.index_put((index(a),), two),
    "index_put, accumulate": lambda a: a.index_put((index(a),), two, accumulate=True),
    "index_put, mask": lambda a: a.index_put((a > 1,), zero),
    "index_fill": lambda a: a.index_fill(0, index(a), two),
    "masked_fill": lambda a: a.masked_fill(a > 1, zero),
    "fill": lambda a: a.fill_(two),
    "clamp_min": lambda a: torch.clamp_min(a, two),
    "clamp_max": lambda a: torch.clamp_max(a, two),
    "add": lambda a: a + two,
    "add, first": lambda a: two + a,
    "add, alpha": lambda a: torch.add(a, two, alpha=3),
    "sub": lambda a: a - two,
    "rsub": lambda a: torch.rsub(a, two),
    "mul": lambda a: a * two,
    "div": lambda a: two / a,
    "floor_divide": lambda a: torch.floor_divide(a, two),
    "div, trunc": lambda a: torch.div(a, two, rounding_mode="trunc"),
    "remainder": lambda a: torch.remainder(a, two),
    "fmod": lambda a: torch.fmod(a, two),
    "pow": lambda a: torch.pow(a, two),
    "pow, base": lambda a: torch.pow(two, a),
    "maximum": lambda a: torch.maximum(a, two),
    "minimum": lambda a: torch.minimum(two, a),
    "fmax": lambda a: torch.fmax(a, two),
    "atan2": lambda a: torch.atan2(a, two),
    "hypot": lambda a: torch.hypot(a, two),
    "copysign": lambda a: torch.copysign(a, -two),
    "xlogy": lambda a: torch.xlogy(a, two),
    "heaviside": lambda a: torch.heaviside(a - 1, two),
    "logaddexp": lambda a: torch.logaddexp(a, two),
    "lerp": lambda a: torch.lerp(a, a * 2, torch.tensor(0.25)),
    "lerp, end": lambda a: torch.lerp(a, two, 0.25),
    "addcmul": lambda a: torch.addcmul(a, a, two),
    "gt": lambda a: a > two,
    "eq": lambda a: torch.eq(two, a),
    "logical_and": lambda a: torch.logical_and(a > 1, truth),
    "bitwise_and": lambda a: a.to(torch.int32) & torch.tensor(3, dtype=torch.int32),
    "searchsorted": lambda a: torch.searchsorted(a, two.to(a.device)),
    "isin": lambda a: torch.isin(a, two.to(a.device)),
    "copy": lambda a: a.copy_(two),
    "half": lambda a: a.half() * two,
    "linspace-like steps": lambda a: torch.where(a > 1, torch.tensor(7, dtype=torch.int64), a),
}
names = [name for name, call in CALLS.items()]
for name in names:
    call = CALLS[name]
    values = torch.tensor([1.0, 2.0, 3.0])
    want = call(values.clone())
    for current in (0, 1):
        torch.npu.set_device(current)
        there = values.to(f"npu:{1 - current}")
        got = call(there)
        assert got.device == there.device, name
        assert torch.allclose(got.cpu().float(), want.float()), (name, got.cpu(), want)
        assert torch.npu.current_device() == current, name
try:
    torch.where(there > 1, there, torch.zeros(3))
except RuntimeError as e:
    assert "same device" in str(e) and f"npu:{there.device.index}" in str(e), e
else:
    raise AssertionError("a tensor of the host was taken")
assert torch.npu.current_device() == 1
print("ok", len(names))
"""


def test_every_operator_moves_scalars_to_the_tensor_device(run_python):
    code, output = run_python(CODE, ORT_NPU_DEVICE_COUNT="2")
    assert code == 0 and "ok 45" in output, output
