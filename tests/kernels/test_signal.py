"""Fourier transforms, windows and mel bands against NumPy in double, and hostile arguments."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_nodes import FLOATS, INTS, Node, assert_close, dtype_of, make_model, random, run_npu

# Powers of two, small factors, a prime that is transformed by factors, and larger ones.
LENGTHS = [1, 2, 3, 8, 60, 61, 67, 126, 400, 1024, 2 * 1009]


def number(value) -> np.ndarray:
    return np.array(value, np.int64)


def as_complex(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide[..., 0] + 1j * wide[..., 1] if x.shape[-1] == 2 else wide[..., 0]


def as_pairs(z: np.ndarray) -> np.ndarray:
    return np.stack([z.real, z.imag], -1)


def assert_spectrum(got: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    """Equal up to one rounding of the largest value: smaller ones are what large ones leave."""
    assert got.dtype == dtype_of(dtype) and got.shape == expected.shape
    unit = {"float64": 1e-13, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    apart = np.abs(got.astype(np.float64) - expected).max(initial=0)
    assert apart <= unit * np.abs(expected).max(initial=0)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("length", LENGTHS)
def test_dft_of_any_length(length, parts) -> None:
    x = random(np.random.default_rng(length), "float64", 2, length, parts)
    for inverse, transform in ((0, np.fft.fft), (1, np.fft.ifft)):
        got = run_npu("DFT", [x], opset=20, inverse=inverse)[0]
        assert_spectrum(got, as_pairs(transform(as_complex(x), axis=1)), "float64")


@pytest.mark.parametrize("dtype", FLOATS)
def test_onesided_dft_and_its_inverse(dtype) -> None:
    rng = np.random.default_rng(1)
    for length in (1, 6, 7, 134):
        x = random(rng, dtype, 3, length, 2, 1)
        spectrum = run_npu("DFT", [x, None, number(1)], opset=20, onesided=1)[0]
        expected = np.fft.rfft(as_complex(x), axis=1)
        assert_spectrum(spectrum, as_pairs(expected), dtype)
        half = as_pairs(expected).astype(x.dtype)
        inputs = [half, number(length), number(1)]
        back = run_npu("DFT", inputs, opset=20, onesided=1, inverse=1)[0]
        wanted = np.fft.irfft(as_complex(half), length, axis=1)[..., None]
        assert_spectrum(back, wanted, dtype)


@pytest.mark.parametrize("axis", [0, 1, -2, -3])
@pytest.mark.parametrize("length", [None, 3, 9])
def test_dft_along_any_axis_cuts_and_pads(length, axis) -> None:
    x = random(np.random.default_rng(2), "float64", 5, 4, 6, 2)
    given = None if length is None else number(length)
    expected = as_pairs(np.fft.fft(as_complex(x), length, axis=axis % 4))
    assert_spectrum(run_npu("DFT", [x, given, number(axis)], opset=20)[0], expected, "float64")
    assert_spectrum(run_npu("DFT", [x, given], opset=17, axis=axis)[0], expected, "float64")


def test_wrong_arguments_of_dft_are_refused() -> None:
    x = np.ones((2, 4, 1), np.float32)
    node = Node("DFT", [x, number(4), number(1)], opset=20)
    for length in (0, -3, 2**31, 2**62):
        with pytest.raises(Exception, match=r"dft_length from 1 to 2\^30"):
            node(x, number(length), number(1))
    for axis in (2, -1):
        with pytest.raises(Exception, match="another axis than the last"):
            node(x, number(4), number(axis))
    with pytest.raises(Exception, match="axis"):
        node(x, number(4), number(5))
    for wrong in (np.ones((2, 4, 3), np.float32), np.ones(2, np.float32)):
        with pytest.raises(Exception, match=r"an input \[..., 1\]"):
            node(wrong, number(4), number(0))
    with pytest.raises(Exception, match="real numbers for a onesided transform"):
        run_npu("DFT", [np.ones((2, 4, 2), np.float32)], opset=20, onesided=1)
    with pytest.raises(Exception, match="complex numbers for a onesided inverse"):
        run_npu("DFT", [x], opset=20, onesided=1, inverse=1)
    assert node(x[:0], number(4), number(1))[0].shape == (0, 4, 2)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("onesided, parts", [(1, 1), (0, 1), (0, 2)])
def test_stft(onesided, parts, dtype) -> None:
    rng = np.random.default_rng(3)
    x, window = random(rng, dtype, 2, 50, parts), random(rng, dtype, 12, low=0)
    frames = np.stack([as_complex(x)[:, i * 7 : i * 7 + 12] for i in range(6)], 1)
    for given in (window, None):
        weights = 1 if given is None else window.astype(np.float64)
        transform = np.fft.rfft if onesided else np.fft.fft
        inputs = [x, number(7), given, number(12)]
        got = run_npu("STFT", inputs, opset=17, onesided=onesided)[0]
        assert_spectrum(got, as_pairs(transform(frames * weights)), dtype)


def test_wrong_arguments_of_stft_are_refused() -> None:
    x, window = np.ones((1, 16, 1), np.float32), np.ones(4, np.float32)
    node = Node("STFT", [x, number(2), window, number(4)], opset=17)
    for step in (0, -1):
        with pytest.raises(Exception, match="frame_step of 1 or more"):
            node(x, number(step), window, number(4))
    for length in (5, 3):
        with pytest.raises(Exception, match="a frame_length that is the window's"):
            node(x, number(2), window, number(length))
    with pytest.raises(Exception, match="not longer than the signal"):
        node(x, number(2), np.ones(17, np.float32), number(17))
    with pytest.raises(Exception, match="frame_length from 1"):
        node(x, number(2), window, number(0))
    for wrong in (np.ones((1, 16), np.float32), np.ones((1, 16, 3), np.float32)):
        with pytest.raises(Exception, match=r"a signal \[N, length, 1\]"):
            node(wrong, number(2), window, number(4))
    assert node(x, number(2**62), window, number(4))[0].shape == (1, 1, 3, 2)


MEL_INPUTS = [number(8), number(400), number(16000), np.array(60.0), np.array(7000.0)]


@pytest.mark.parametrize("dtype", FLOATS)
def test_mel_weight_matrix(dtype) -> None:
    how = {"opset": 17, "output_datatype": type_of(dtype)}
    reference = ReferenceEvaluator(
        make_model("MelWeightMatrix", MEL_INPUTS, opset=17, output_datatype=type_of("float64"))
    )
    feeds = {f"x{i}": value for i, value in enumerate(MEL_INPUTS)}
    expected = reference.run(None, feeds)[0]
    assert expected.any()
    assert_close(run_npu("MelWeightMatrix", MEL_INPUTS, **how)[0], expected, dtype)


def type_of(dtype: str) -> int:
    return helper.np_dtype_to_tensor_dtype(dtype_of(dtype))


def test_wrong_arguments_of_mel_weight_matrix_are_refused() -> None:
    node = Node("MelWeightMatrix", MEL_INPUTS, opset=17)
    for position, bad, message in [
        (0, number(-1), "num_mel_bins of 0 or more"),
        (1, number(0), "a dft_length"),
        (2, number(0), "a sample_rate"),
        (3, np.array(-1.0), "edges of 0 or more"),
        (3, np.array(np.nan), "edges of 0 or more"),
        (3, np.array(7001.0), "the lower one first"),
        (4, np.array(1e6), "half of the sample rate"),
        (4, np.array(np.inf), "half of the sample rate"),
        (0, number([1, 2]), "one value"),
    ]:
        inputs = list(MEL_INPUTS)
        inputs[position] = bad
        with pytest.raises(Exception, match=message):
            node(*inputs)
    assert node(number(0), *MEL_INPUTS[1:])[0].shape == (201, 0)


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix"])
def test_generated_integers_have_no_fraction(op, dtype) -> None:
    inputs = MEL_INPUTS if op == "MelWeightMatrix" else [number(9)]
    how = {"opset": 17} | ({} if op == "MelWeightMatrix" else {"periodic": 0})
    whole = run_npu(op, inputs, output_datatype=type_of(dtype), **how)[0]
    values = run_npu(op, inputs, output_datatype=type_of("float64"), **how)[0]
    assert values.max() > 0.99  # 1, or just below
    assert_close(whole, np.trunc(values), dtype)
