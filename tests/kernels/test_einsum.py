"""Einsum against NumPy, in float64 or exact integers."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_nodes import Node, random, run_npu

EQUATIONS = [
    ("ij,jk->ik", [(3, 4), (4, 5)]),
    ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
    ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
    ("bqhd,bkhd->bhqk", [(2, 4, 3, 5), (2, 6, 3, 5)]),
    ("ij,jk,kl->il", [(3, 4), (4, 5), (5, 2)]),
    ("ab,cd->dcba", [(2, 3), (4, 5)]),
    ("ii->i", [(4, 4)]),
    ("ii", [(4, 4)]),
    ("bii->bi", [(2, 3, 3)]),
    ("ij->ji", [(3, 4)]),
    ("ij->", [(3, 4)]),
    ("i,i->", [(5,), (5,)]),
    ("i,j", [(5,), (3,)]),
    ("iij,jk->ik", [(3, 3, 4), (4, 2)]),
    ("ij,ij->ij", [(3, 4), (3, 4)]),
    ("ij,kl->k", [(3, 4), (2, 5)]),
    ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 6)]),
    ("i...->...", [(3, 4, 5)]),
    ("...", [(3, 4)]),
    ("...ij", [(2, 4, 3)]),
    ("b i j , b j -> b i", [(2, 3, 4), (2, 4)]),
    (",ij->ij", [(), (3, 4)]),
    ("ij,jk->ik", [(3, 1), (4, 5)]),  # an axis of one element repeats
    ("ij,jk->ik", [(0, 4), (4, 5)]),
    ("ij,jk->ik", [(3, 0), (0, 5)]),  # sums of nothing
    ("bij,bjk->bik", [(300, 7, 9), (300, 9, 5)]),
    ("ij,jk->ik", [(130, 257), (257, 65)]),
]
# Sums of up to 257 terms of up to 1 in float32, or of two roundings to 16 bits of up to 257 terms.
NEAR = {"float64": 1e-12, "float32": 257 * 2.0**-22, "float16": 257 * 2.0**-10}


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32", "int64"])
def test_equations(dtype) -> None:
    rng = np.random.default_rng(1)
    for equation, shapes in EQUATIONS:
        low, high = (-9, 9) if dtype.startswith("int") else (-1, 1)
        operands = [random(rng, dtype, *shape, low=low, high=high) for shape in shapes]
        wide = [a if dtype.startswith("int") else a.astype(np.float64) for a in operands]
        expected = np.einsum(equation, *wide)
        got = run_npu("Einsum", operands, opset=12, equation=equation)[0]
        assert got.dtype == operands[0].dtype and got.shape == expected.shape, equation
        if dtype in NEAR:
            np.testing.assert_allclose(got, expected, rtol=0, atol=NEAR[dtype], err_msg=equation)
        else:
            np.testing.assert_array_equal(got, expected, err_msg=equation)


@pytest.mark.parametrize("seed", range(4))
def test_random_equations(seed) -> None:
    """Any number of operands with any subscripts, of which the output keeps some in any order."""
    rng = np.random.default_rng(seed)
    for _ in range(12):
        letters = rng.permutation(list("abcdefg"))[: rng.integers(1, 6)]
        size = {letter: int(rng.integers(1, 4)) for letter in letters}
        terms = [
            "".join(rng.choice(letters, rng.integers(0, 5))) for _ in range(rng.integers(1, 4))
        ]
        used = sorted(set("".join(terms)))
        kept = "".join(rng.permutation(used)[: rng.integers(0, len(used) + 1)]) if used else ""
        equation = ",".join(terms) + "->" + kept
        operands = [rng.integers(-3, 4, [size[c] for c in term]) for term in terms]
        got = run_npu("Einsum", operands, opset=12, equation=equation)[0]
        np.testing.assert_array_equal(got, np.einsum(equation, *operands), err_msg=equation)


WRONG = [
    ("ij,jk->ik", [(3, 4)], "an operand for each term"),
    ("ij->ji", [(3, 4, 5)], "an axis for each subscript"),
    ("ij,jk->ik", [(3, 4), (5, 6)], "one size, or 1, for each subscript"),
    ("ij->ik", [(3, 4)], "subscripts of the output in a term"),
    ("ij->ii", [(3, 4)], "each subscript of the output once"),
    ("i1->i", [(3, 4)], "expected letters and at most one ellipsis"),
    ("......->", [(3, 4)], "expected letters and at most one ellipsis"),
    ("abcdefg,hijklmn->", [(1,) * 7] * 2, "at most 12 subscripts"),
]


@pytest.mark.parametrize("equation, shapes, message", WRONG, ids=str)
def test_wrong_equations_are_refused(equation, shapes, message) -> None:
    arrays = [np.ones(shape, np.float32) for shape in shapes]
    with pytest.raises(Exception, match=message):
        Node("Einsum", arrays, opset=12, equation=equation)(*arrays)
