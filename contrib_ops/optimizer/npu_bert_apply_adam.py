"""A step of Adam without bias correction, as BERT is trained.

Source: torch_npu.npu_bert_apply_adam. Upstream's documents differ on clipping. Of the devices in
the field, a gradient whose global norm exceeds 1 is divided by the norm if max_grad_norm is
positive, which is done here; of the newest, adam_mode 0 multiplies by min(1, max_grad_norm /
global_grad_norm).
"""

from onnxruntime_npu.opdef import composition

from ._adam import FLOATS, updated, without_out, write

_NAME = "npu_bert_apply_adam"
_ARGUMENTS = (
    "Scalar lr, Scalar beta1, Scalar beta2, Scalar epsilon, Tensor grad, Scalar max_grad_norm,"
    " Scalar global_grad_norm, Scalar weight_decay, Scalar? step_size=None, int adam_mode=0"
)

op = composition(f"{_NAME}({_ARGUMENTS}) -> (Tensor var, Tensor m, Tensor v)", dtypes=FLOATS)


@op.function
def npu_bert_apply_adam(
    lr,
    beta1,
    beta2,
    epsilon,
    grad,
    max_grad_norm,
    global_grad_norm,
    weight_decay,
    step_size=None,
    adam_mode=0,
):
    """Raise: as in torch_npu, only the call with out=(var, m, v) is there."""
    without_out(_NAME)


@op.partner(f"{_NAME}.out({_ARGUMENTS}, *, Tensor[] out) -> (Tensor, Tensor, Tensor)")
def npu_bert_apply_adam_out(
    lr,
    beta1,
    beta2,
    epsilon,
    grad,
    max_grad_norm,
    global_grad_norm,
    weight_decay,
    step_size=None,
    adam_mode=0,
    *,
    out,
):
    """Update out = (var, m, v) by the gradient, in float32, and return them.

    m = beta1 m + (1 - beta1) grad; v = beta2 v + (1 - beta2) grad^2; u = m / (sqrt(v) + epsilon);
    adam_mode 0: var -= lr (u + weight_decay var); any other: var -= step_size u + lr weight_decay
    var, step_size None being lr. A weight_decay that is not positive counts 0.
    """
    var, m, v = updated(_NAME, grad, out)
    g, w = grad.float(), var.float()
    if max_grad_norm > 0 and global_grad_norm > 1:
        g = g / global_grad_norm
    mean = beta1 * m.float() + (1 - beta1) * g
    square = beta2 * v.float() + (1 - beta2) * g * g
    rate = lr if step_size is None or not adam_mode else step_size
    step = rate * mean / (square.sqrt() + epsilon)
    decayed = lr * max(weight_decay, 0) * w
    return write(out, (w - step - decayed, mean, square))
