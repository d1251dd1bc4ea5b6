"""How far an exported file may depart from the eager float32 model, and for what reason."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from ...converters.schemes import SCHEMES
from ..report import ExportReport

# Rounded results in a layer: norms, projections, rotation, attention, activation, additions.
_ROUNDINGS_PER_LAYER = 10
# Inputs of projections in a layer, one after the other: of query, key and value; of the output; of
# gate and up; of down.
_INPUTS_PER_LAYER = 4
# Of what shares a scale, at most 128 activations or the weights of an output, the largest is about
# three times the root mean square if they are normally distributed, and more if they are not.
_LARGEST = 4
# Integers from -127 to 127 err by up to half a step; this is relative to the root mean square.
_HALF_STEP = _LARGEST / 254
_SAME_FORMULA = 1e-4  # of sums in another order, as in the proofs


@dataclass(frozen=True)
class Expectation:
    """Bounds of the differences from the eager model.

    ``logits``: root mean square of the differences, relative to that of the logits around their
    mean. ``perplexity``: relative rise on text.
    """

    logits: float
    perplexity: float
    reason: str

    def __add__(self, other: Expectation) -> Expectation:
        """Return the bounds of both sources of errors, which are independent of one another."""
        return Expectation(
            math.hypot(self.logits, other.logits),
            self.perplexity + other.perplexity,
            f"{self.reason}; {other.reason}",
        )

    def as_report(self) -> dict[str, Any]:
        """Return the entry of the report."""
        return {
            key: v if isinstance(v, str) else float(f"{v:.2g}") for key, v in asdict(self).items()
        }


_SIGNIFICANT_BITS = {"float16": 11, "bfloat16": 8}
_SUMS = Expectation(_SAME_FORMULA, _SAME_FORMULA, "float32 sums in another order")
# Perplexities: 1 % more for int8 weights with 16-bit activations, 2 % with int8 ones, 6 % for int4
# is what users accept; a small model can lose more, which they should know.
_WEIGHTS = {
    8: Expectation(0.1, 0.005, "int8 weights"),
    4: Expectation(0.5, 0.05, "int4 weights"),
}
_INTEGER_CACHE = Expectation(0.1, 0.005, "int8 keys and values")
_INTEGER_ACTIVATIONS = Expectation(0.2, 0.01, "int8 activations")
_INTEGER_HEAD = Expectation(_HALF_STEP, 0.005, "int8 weights of the head")


def expected_departure(report: ExportReport, layers: int) -> Expectation:
    """Return the bounds for an export of so many layers that its report describes."""
    expected, dtype = _SUMS, str(report.dtype)
    if dtype in _SIGNIFICANT_BITS:
        bits = _SIGNIFICANT_BITS[dtype]
        # Errors of up to half a unit in the last place add up like random steps.
        error = 2.0**-bits * math.sqrt(_ROUNDINGS_PER_LAYER * layers)
        expected += Expectation(error, 0.005, f"{dtype} results of {bits} significant bits")
    scheme = SCHEMES.get(str(report.quant))
    if scheme is not None:  # else the eager model has the same integers
        expected += _WEIGHTS[scheme.weight_bits]
    if report.cache_dtype == "int8":
        expected += _INTEGER_CACHE
    integer_products = "npu_quant_matmul" in report.replaced  # also of a checkpoint's integers
    if integer_products or (scheme is not None and scheme.activation != "float"):
        expected += _INTEGER_ACTIVATIONS
    if report.inner_precise == 1:
        # The errors of one input after the other add up like random steps; the head has one, too.
        error = _HALF_STEP * math.sqrt(_INPUTS_PER_LAYER * layers + report.quant_head)
        expected += Expectation(error, 0.01, "activations rounded to int8 inside the operators")
    if report.quant_head and scheme is None:  # a scheme's weights include the head's
        expected += _INTEGER_HEAD
    return expected
