"""A step of Adam in TensorFlow's form. Source: torch_npu.npu_apply_adam."""

import math

from onnxruntime_npu.opdef import composition

from ._adam import FLOATS, updated, without_out, write

_NAME = "npu_apply_adam"
_ARGUMENTS = (
    "Scalar beta1_power, Scalar beta2_power, Scalar lr, Scalar beta1, Scalar beta2,"
    " Scalar epsilon, Tensor grad, bool? use_locking, bool? use_nesterov"
)

op = composition(f"{_NAME}({_ARGUMENTS}) -> (Tensor, Tensor, Tensor)", dtypes=FLOATS)


@op.function
def npu_apply_adam(
    beta1_power, beta2_power, lr, beta1, beta2, epsilon, grad, use_locking, use_nesterov
):
    """Raise: as in torch_npu, only the call with out=(var, m, v) is there."""
    without_out(_NAME)


@op.partner(f"{_NAME}.out({_ARGUMENTS}, *, Tensor[] out) -> (Tensor, Tensor, Tensor)")
def npu_apply_adam_out(
    beta1_power, beta2_power, lr, beta1, beta2, epsilon, grad, use_locking, use_nesterov, *, out
):
    """Update out = (var, m, v) by the gradient, in float32, and return them.

    m += (1 - beta1) (grad - m); v += (1 - beta2) (grad^2 - v); var -= rate m / (epsilon + sqrt(v))
    for rate = lr sqrt(1 - beta2_power) / (1 - beta1_power); with use_nesterov beta1 m + (1 - beta1)
    grad in place of m. The powers of beta are the caller's to advance; use_locking has no effect.
    """
    var, m, v = updated(_NAME, grad, out)
    g = grad.float()
    mean = m.float() + (1 - beta1) * (g - m.float())
    square = v.float() + (1 - beta2) * (g * g - v.float())
    first = 1 - beta1_power
    rate = lr * math.sqrt(1 - beta2_power)
    rate = rate / first if first else math.copysign(math.inf, rate) if rate else math.nan
    step = beta1 * mean + (1 - beta1) * g if use_nesterov else mean
    return write(out, (var.float() - rate * step / (epsilon + square.sqrt()), mean, square))
