"""Every operator of torch's own operator database on npu tensors, against the CPU.

An operator with a kernel runs on the device, others fall back; both must match the CPU. The
database and its samples are torch's and do not depend on what is implemented.
"""

import warnings

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo.core import OpInfo

SAMPLES = 4  # of each operator and dtype: the whole file takes minutes
DTYPES = {"float32": torch.float32, "int64": torch.int64}

# Results that are random or uninitialised: only shape and dtype can be compared.
RANDOM = {
    "bernoulli", "cauchy", "empty", "empty_like", "empty_permuted", "empty_strided", "exponential",
    "geometric", "log_normal", "multinomial", "new_empty", "new_empty_strided", "normal",
    "pca_lowrank", "rand_like", "randint", "randint_like", "randn", "randn_like", "svd_lowrank",
    "uniform", "nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.dropout2d",
    "nn.functional.dropout3d", "nn.functional.feature_alpha_dropout",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "nn.functional.multi_head_attention_forward", "nn.functional.rrelu",
}  # fmt: skip

# The order of equal elements is not defined: only the first result, the values, is compared.
TIES = ["kthvalue", "median", "topk"]

# Near their poles the CPU's own results of float32 have fewer digits than the tolerance: for the
# comparison it computes in float64.
IN_DOUBLE = ["polygamma", "special.polygamma"]

REASONS = {
    "as_strided_partial_views": "its views reach memory that a copy to npu does not include",
    "sparse_sampled_addmm": "npu has no sparse tensors",
    "sparse_mm_reduce": "npu has no sparse tensors",
    "to_sparse": "npu has no sparse tensors",
    "native_dropout_backward": "supports integers only on the CPU, as on CUDA",
    "tensor_split": "torch requires its index tensor on the CPU",
    "to": "its samples request results on the CPU",
}


def full_name(op: OpInfo) -> str:
    return "_".join(filter(None, (op.name.replace(".", "_"), op.variant_test_name)))


def cases():
    for op in op_db:
        if op.name.startswith("jiterator"):  # compiles CUDA sources
            continue
        for name, dtype in DTYPES.items():
            if dtype in op.dtypes:
                marks = [pytest.mark.skip(reason=r)] if (r := REASONS.get(full_name(op))) else []
                if dtype == torch.int64 and torch.float32 in op.dtypes:
                    marks.append(pytest.mark.slow)
                yield pytest.param(op, dtype, id=f"{full_name(op)}-{name}", marks=marks)


def moved(value, device):
    """The value with its tensors and device arguments moved to the device."""

    def move(leaf):
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to(device)
        return torch.device(device) if isinstance(leaf, torch.device) else leaf

    return tree_map(move, value)


def in_double(value):
    return value.double() if isinstance(value, torch.Tensor) else value


def call(op, sample, device):
    """The tensors of the result, computed on copies so that samples are not modified."""
    args = moved([a.clone() if isinstance(a, torch.Tensor) else a for a in sample.args], device)
    kwargs = moved(sample.kwargs, device)
    if kwargs.get("device") is not None:
        kwargs["device"] = device
    source = sample.input
    source = source.clone() if isinstance(source, torch.Tensor) else source
    result = op(moved(source, device), *args, **kwargs)
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


# A kernel must not resize an output that torch has already shaped, even if its values are right.
@pytest.mark.filterwarnings("error:An output with one or more elements was resized")
@pytest.mark.parametrize("op, dtype", list(cases()))
def test_operator_equals_cpu(op, dtype):
    compared = refused = 0
    # With the seed of the test: to set one for each sample takes longer than most samples.
    samples = op.sample_inputs("cpu", dtype, set_seed=False)
    for sample, _ in zip(samples, range(SAMPLES), strict=False):
        try:
            wide = sample.transform(in_double) if op.name in IN_DOUBLE else sample
            expected = call(op, wide, "cpu")
        except (RuntimeError, NotImplementedError):
            refused += 1
            continue
        actual = call(op, sample, "npu")
        assert len(actual) == len(expected)
        random = op.name in RANDOM or sample.kwargs.get("dropout_p")
        if op.name in TIES:
            actual, expected = actual[:1], expected[:1]
        if wide is not sample:
            expected = [e.float() for e in expected]
        for a, e in zip(actual, expected, strict=True):
            assert (a.shape, a.dtype) == (e.shape, e.dtype)
            if not random and e.layout is torch.strided:
                # torch's tolerances of the dtype, ten times wider for sums in another order.
                rtol, atol = (1.3e-5, 1e-4) if e.dtype.is_floating_point else (None, None)
                torch.testing.assert_close(a.cpu(), e, equal_nan=True, rtol=rtol, atol=atol)
        compared += 1
    if not compared:
        pytest.skip(f"the CPU refuses each of {refused} samples")
