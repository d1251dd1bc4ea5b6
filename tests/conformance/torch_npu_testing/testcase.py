"""The suites' base class: comparisons of tensors, arrays and numbers, within a tolerance.

The tolerances are the suites' own: they are part of what is conformed to, so they are kept
unchanged, odd ones included.
"""

import numbers
import os
import random
import unittest
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from .common_utils import is_iterable, set_npu_device

try:
    from expecttest import TestCase as _Base  # assertExpectedInline and similar
except ImportError:
    _Base = unittest.TestCase

# Below these, a relative difference is measured against them: the smallest half, and float32 noise.
_TINY = {np.dtype(np.float16): 6e-8}
_TINY_ELSE = 1e-9
_COMPARABLE = {np.dtype(code) for code in "?bBhHiqefd"}


def run_tests():
    """The entry point of a suite's file that is run as a script."""
    unittest.main()


class TestCase(_Base):
    """A test with a seed, a current device, and comparisons that know tensors."""

    maxDiff = None
    exact_dtype = False
    precision = 1e-5

    @classmethod
    def setUpClass(cls):
        cls.npu_device = set_npu_device()

    def setUp(self):
        seed = int(os.environ.get("SEED", "666"))
        torch.manual_seed(seed)
        random.seed(seed)

    # --- relative comparison of arrays

    def assertRtolEqual(self, x, y, prec=1e-4, prec16=1e-3, auto_trans_dtype=False, message=None):
        """Equal shapes, dtypes and NaNs, and values that are close except for a few elements.

        An element is close if its absolute or its relative difference is within ``prec``
        (``prec16`` for 16 bits); a fraction ``prec`` of them may be neither.
        """
        if isinstance(x, Sequence) and isinstance(y, Sequence):
            for a, b in zip(x, y, strict=False):
                self.assertRtolEqual(a, b, prec, prec16, auto_trans_dtype, message)
            return
        if isinstance(x, torch.Tensor) and isinstance(y, Sequence):
            y = torch.as_tensor(y, dtype=x.dtype, device=x.device)
        elif isinstance(y, torch.Tensor) and isinstance(x, Sequence):
            x = torch.as_tensor(x, dtype=y.dtype, device=y.device)
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            if auto_trans_dtype:
                x = x.to(y.dtype)
            if x.dtype == y.dtype == torch.bfloat16:
                if x.shape != y.shape:
                    self.fail(f"shapes differ: {tuple(x.shape)} and {tuple(y.shape)}")
                if not torch.allclose(x.cpu(), y.cpu(), rtol=prec16, atol=prec16):
                    self.fail(f"bfloat16 values differ by more than {prec16}")
                return
            x, y = x.detach().cpu().numpy(), y.detach().cpu().numpy()
        elif isinstance(x, numbers.Number) and isinstance(y, numbers.Number):
            x, y = np.array(x), np.array(y)
        self._assert_arrays_near(x, y, prec, prec16)

    def _assert_arrays_near(self, x, y, prec, prec16):
        if x.shape != y.shape:
            self.fail(f"shapes differ: {x.shape} and {y.shape}")
        if x.dtype != y.dtype:
            self.fail(f"dtypes differ: {x.dtype} and {y.dtype}")
        if x.dtype not in _COMPARABLE:
            self.fail(f"assertRtolEqual does not compare {x.dtype}")
        if x.dtype == np.bool_:
            if not np.array_equal(x, y):
                self.fail(f"{np.sum(x != y)} of {x.size} booleans differ")
            return
        tolerance = prec16 if x.dtype == np.float16 else prec
        with np.errstate(all="ignore"):
            difference = y - x
            nan = np.isnan(x)
            if not np.array_equal(nan, np.isnan(y)):
                self.fail("NaNs are at different places")
            difference = np.abs(np.where(nan, 0, difference))
            scale = np.maximum(np.abs(x), np.abs(y)) + _TINY.get(x.dtype, _TINY_ELSE)
            far = np.sum(~(difference <= tolerance))
            relatively_far = np.sum(~(difference / scale <= tolerance))
        if min(far, relatively_far) > x.size * tolerance:
            self.fail(
                f"{min(far, relatively_far)} of {x.size} values differ by more than {tolerance}, "
                f"the worst by {np.nanmax(difference)}"
            )

    # --- comparison of anything

    def assertEqual(self, x, y, prec=None, message="", allow_inf=False, exact_dtype=None):
        """Equality within an absolute tolerance, element by element of tensors and containers."""
        if isinstance(prec, str):
            prec, message = None, message or prec
        prec = self.precision if prec is None else prec
        exact_dtype = self.exact_dtype if exact_dtype is None else exact_dtype
        options = (prec, message, allow_inf, exact_dtype)

        number = (numbers.Number, np.bool_)
        if isinstance(x, number) or isinstance(y, number):
            self._assert_numbers_equal(_item(x), _item(y), prec, message, allow_inf)
        elif isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            self._assert_tensors_equal(x, y, *options)
        elif isinstance(x, Mapping) and isinstance(y, Mapping):
            super().assertEqual(set(x), set(y), message)
            for key in x:
                self.assertEqual(x[key], y[key], *options)
        elif isinstance(x, (str, bytes, set)) or not (is_iterable(x) and is_iterable(y)):
            super().assertEqual(x, y, message)
        else:
            x, y = list(x), list(y)
            super().assertEqual(len(x), len(y), message)
            for a, b in zip(x, y, strict=True):
                self.assertEqual(a, b, *options)

    def _assert_numbers_equal(self, x, y, prec, message, allow_inf):
        comparable = isinstance(x, numbers.Number) and isinstance(y, numbers.Number)
        if not comparable or isinstance(x, bool) or isinstance(y, bool):
            super().assertEqual(x, y, message)
        elif abs(x) == float("inf") or abs(y) == float("inf"):
            if not allow_inf:
                self.fail(f"expected finite numbers, got {x} and {y}")
            super().assertEqual(x, y, message)
        else:
            super().assertLessEqual(abs(x - y), prec, message)

    def _assert_tensors_equal(self, x, y, prec, message, allow_inf, exact_dtype):
        super().assertEqual(x.is_sparse, y.is_sparse, message)
        super().assertEqual(x.is_quantized, y.is_quantized, message)
        if x.is_sparse:
            x, y = x.coalesce(), y.coalesce()
            self._assert_tensors_equal(x.indices(), y.indices(), prec, message, allow_inf, False)
            x, y = x.values(), y.values()
        elif x.is_quantized:
            super().assertEqual(x.qscheme(), y.qscheme(), message)
            super().assertEqual(x.dtype, y.dtype, message)
            x, y = x.dequantize(), y.dequantize()
        super().assertEqual(x.size(), y.size(), message)
        if exact_dtype:
            super().assertEqual(x.dtype, y.dtype, message)
        if not x.numel():
            return
        x, y = x.detach().cpu(), y.detach().cpu()
        if x.dtype == y.dtype and torch.equal(x, y) and (allow_inf or _all_finite(x)):
            return  # without copies in double, which are slow for large tensors
        if (x.dtype == torch.bool) != (y.dtype == torch.bool):
            raise TypeError(f"expected two tensors of bool or none, got {x.dtype} and {y.dtype}")
        difference = self._difference(x, y, message, allow_inf)
        super().assertLessEqual(difference.max().item(), prec, message)

    def _difference(self, x, y, message, allow_inf):
        """Absolute differences on the CPU, exact for integers; NaNs must be at equal positions."""
        x, y = x.detach().cpu(), y.detach().cpu().to(x.dtype)
        if not (x.is_floating_point() or x.is_complex()):
            return (x.to(torch.int64) - y.to(torch.int64)).abs()
        wide = torch.complex128 if x.is_complex() else torch.float64
        x, y = x.to(wide), y.to(wide)
        self.assertTrue(torch.equal(x.isnan(), y.isnan()), message or "NaNs at different places")
        difference = (x - y).abs()
        difference[x.isnan()] = 0
        if allow_inf:
            same = x.isinf() & (x == y)
            self.assertTrue(torch.equal(x.isinf(), y.isinf()), message)
            difference[same] = 0
        return difference

    def assertAlmostEqual(self, x, y, places=None, msg=None, delta=None, allow_inf=None):
        """assertEqual within ``delta`` or a number of decimal places."""
        self.assertEqual(x, y, 10**-places if places else delta, msg or "", bool(allow_inf))

    def assertNotEqual(self, x, y, prec=None, message=""):
        """Differs somewhere by at least the tolerance."""
        if isinstance(prec, str):
            prec, message = None, message or prec
        prec = self.precision if prec is None else prec
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            super().assertEqual(x.size(), y.size())
            if torch.equal(x.cpu().isnan(), y.cpu().isnan()):
                self.assertGreaterEqual(self._difference(x, y, message, False).max(), prec, message)
            return
        number = isinstance(x, numbers.Number) and isinstance(y, numbers.Number)
        if not (number and abs(x - y) >= prec):
            super().assertNotEqual(x, y, message or None)

    def assertTensorsSlowEqual(self, x, y, prec=None, message=""):
        """Equal size and dtype, and values within ``prec``."""
        super().assertEqual(x.size(), y.size())
        super().assertEqual(x.dtype, y.dtype)
        if x.numel():
            worst = self._difference(x, y, message, False).max().item()
            self.assertLessEqual(worst, 0 if x.dtype == torch.bool else prec, message)

    def assertObjectIn(self, obj, iterable):
        """The identical object is in the container."""
        if not any(obj is element for element in iterable):
            raise AssertionError("object not found in iterable")

    # --- warnings

    def assertNotWarn(self, call_fn, msg=""):
        """The call emits no warning."""
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            call_fn()
        self.assertTrue(not seen, msg)

    def assertWarns(self, call_fn, *args, **kwargs):
        """The call warns; same as unittest's own if a category is given."""
        if isinstance(call_fn, (type, tuple)):
            return super().assertWarns(call_fn, *args, **kwargs)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            call_fn()
        self.assertTrue(seen, args[0] if args else kwargs.get("msg", ""))

    # --- sparse tensors

    def genSparseTensor(self, size, sparse_dim, nnz, is_uncoalesced, device="cpu"):
        """A random sparse tensor with its indices and values."""
        values = torch.randn(nnz, *size[sparse_dim:], device=device)
        limits = torch.tensor(size[:sparse_dim], device=device).unsqueeze(1)
        indices = (torch.rand(sparse_dim, nnz, device=device) * limits).long()
        if is_uncoalesced:
            indices = torch.cat([indices, indices], 1)
            values = torch.cat([values, torch.randn_like(values)])
        tensor = torch.sparse_coo_tensor(indices, values, torch.Size(size))
        tensor = tensor.detach().clone() if is_uncoalesced else tensor.coalesce()
        return tensor, tensor._indices().clone(), tensor._values().clone()

    def safeToDense(self, tensor):
        """The dense form of a sparse tensor."""
        return tensor.coalesce().to_dense()


def _all_finite(x):
    """Whether no element of a tensor is infinite or NaN, in one pass over floats."""
    if x.is_floating_point():
        x = torch.stack(torch.aminmax(x))
    return bool(x.isfinite().all())


def _item(value):
    """A Python number for a tensor or NumPy scalar of one element."""
    if isinstance(value, (torch.Tensor, np.generic)):
        return value.item()
    return value
