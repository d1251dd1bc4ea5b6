"""A step of Adam without bias correction, as BERT is trained.

Source: torch_npu.npu_bert_apply_adam. Device generations differ in clipping, where max_grad_norm is
positive. The default is the rule of the devices in the field, by which models were trained: a
gradient whose global norm exceeds 1 is divided by the norm. To the newest, and with
ORT_NPU_GENERATION=newest, adam_mode 0 multiplies it by min(1, max_grad_norm / global_grad_norm),
and other modes do not clip. No clipping, or a global norm of at most 1 and max_grad_norm, is the
same to all.
"""

from onnxruntime_npu.opdef import composition

from .._generation import is_newest
from ._adam import FLOATS, updated, without_out, write

_NAME = "npu_bert_apply_adam"
_ARGUMENTS = (
    "Scalar lr, Scalar beta1, Scalar beta2, Scalar epsilon, Tensor grad, Scalar max_grad_norm,"
    " Scalar global_grad_norm, Scalar weight_decay, Scalar? step_size=None, int adam_mode=0"
)

op = composition(f"{_NAME}({_ARGUMENTS}) -> (Tensor var, Tensor m, Tensor v)", dtypes=FLOATS)


def _clipped(gradient, max_grad_norm, global_grad_norm, adam_mode):
    """Return the gradient as this process's generation of devices clips it."""
    if max_grad_norm > 0 and is_newest():
        if adam_mode == 0 and global_grad_norm > max_grad_norm:
            return gradient * (max_grad_norm / global_grad_norm)
    elif max_grad_norm > 0 and global_grad_norm > 1:
        return gradient / global_grad_norm
    return gradient


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
    g = _clipped(grad.float(), max_grad_norm, global_grad_norm, adam_mode)
    w = var.float()
    mean = beta1 * m.float() + (1 - beta1) * g
    square = beta2 * v.float() + (1 - beta2) * g * g
    rate = lr if step_size is None or not adam_mode else step_size
    step = rate * mean / (square.sqrt() + epsilon)
    decayed = lr * max(weight_decay, 0) * w
    return write(out, (w - step - decayed, mean, square))
