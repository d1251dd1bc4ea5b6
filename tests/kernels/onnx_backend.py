"""The backend tests of the onnx package with the CPU fallback refused: ``make onnx-backend``.

Runs the node, simple, pytorch-converted and pytorch-operator tests on the NPU, and on onnxruntime's
CPU provider, which decides what counts: tests that it passes, without those of sequences,
optionals, strings, ai.onnx.ml and training. Shape arithmetic may stay on the CPU. Prints how many
passed, failed and were not claimed, with the operators that were not. Exit code 0 if none failed
and 97 of 100 passed.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import os
import pickle
import re
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_npu
from onnx import TensorProto, numpy_helper
from onnx_nodes import CPU, IR_VERSION, NPU

BAR = 0.97
# Later versions are run at this opset: no onnxruntime knows them yet. Of the operators in the
# tests, these add types and attributes; cases that use one fail on the CPU provider, too.
NEWEST_OPSET = 27
# Onnxruntime calls the newest one that it knows unreleased, and refuses it without this.
os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"
KINDS = ("simple", "pytorch-converted", "pytorch-operator")
# The package rounds 16-bit floats at each of several steps, kernels once, at the end: twice the
# distance between two neighbours.
ROUNDING = {"bfloat16": 2.0**-6, "float16": 2.0**-9}
# Types that NumPy knows from an extension, which cannot compare them.
NARROW = {str(np.dtype(t)) for t in vars(ml_dtypes).values() if isinstance(t, type)} - {"object"}
OTHER_VALUES = re.compile("Sequence|Optional|String|RegexFullMatch|LabelEncoder")


@dataclass
class Case:
    """A model with inputs and expected outputs."""

    name: str
    model: onnx.ModelProto
    data_sets: list
    rtol: float
    atol: float


@dataclass
class Tally:
    """Names of tests by outcome; of those not claimed, by operator and reason."""

    passed: list = field(default_factory=list)
    failed: dict = field(default_factory=dict)
    not_claimed: dict = field(default_factory=lambda: collections.defaultdict(set))
    not_counted: list = field(default_factory=list)

    @property
    def unclaimed(self) -> set:
        """Names of the tests with a node that was not claimed."""
        return set().union(*self.not_claimed.values()) if self.not_claimed else set()

    @property
    def share(self) -> float:
        """The part of the counted tests that passed."""
        return len(self.passed) / max(1, len(self.passed) + len(self.failed) + len(self.unclaimed))


def main(arguments: list | None = None) -> int:
    """Runs the tests and prints the report; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-k", default="", help="only tests whose name contains this")
    parser.add_argument("-v", action="store_true", help="name the tests that were not claimed")
    options = parser.parse_args(arguments)
    tally = Tally()
    for case in cases(options.k):
        judge(case, tally)
    print(report(tally, options.v))
    return 0 if not tally.failed and tally.share >= BAR else 1


def node_cases() -> list:
    """The package's node tests, which take it ten seconds to compute: once, for all processes."""
    kept = Path(__file__).parents[2] / "build" / f"onnx-{onnx.__version__}-node-cases.pickle"
    if kept.is_file():
        return pickle.loads(kept.read_bytes())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # overflows while the expected values are computed
        from onnx.backend.test.case.node import collect_testcases

        found = collect_testcases(None)
    kept.parent.mkdir(exist_ok=True)
    own = kept.with_suffix(f".{os.getpid()}")
    own.write_bytes(pickle.dumps(found))
    own.replace(kept)  # whole, whatever another process reads
    return found


def cases(part: str) -> list[Case]:
    """All tests of the package whose name contains `part`."""
    from onnx.backend.test.loader import load_model_tests

    nodes = [case for case in node_cases() if part in case.name]
    found = [Case(c.name, loadable(c.model), c.data_sets, c.rtol, c.atol) for c in nodes]
    for kind in KINDS:
        for case in load_model_tests(kind=kind):
            if part in case.name:
                folder = Path(case.model_dir)
                model = loadable(onnx.load(folder / "model.onnx"))
                found.append(Case(case.name, model, stored(folder), case.rtol, case.atol))
    return found


def loadable(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model at an opset and IR version that onnxruntime loads."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    out.ir_version = min(out.ir_version, IR_VERSION)
    for opset in out.opset_import:
        if opset.domain == "":
            opset.version = min(opset.version, NEWEST_OPSET)
    return out


def stored(folder: Path) -> list:
    """The data sets in the files of a test."""

    def tensors(data: Path, kind: str) -> list:
        count = len(list(data.glob(f"{kind}_*.pb")))
        return [
            TensorProto.FromString((data / f"{kind}_{i}.pb").read_bytes()) for i in range(count)
        ]

    return [
        (tensors(data, "input"), tensors(data, "output"))
        for data in sorted(folder.glob("test_data_set*"))
    ]


def judge(case: Case, tally: Tally) -> None:
    """Adds the outcome of one test."""
    types = {node.op_type for node in case.model.graph.node}
    domains = {node.domain for node in case.model.graph.node}
    if any(OTHER_VALUES.search(name) for name in types) or any("ai.onnx." in d for d in domains):
        tally.not_counted.append(case.name)
        return
    try:
        run(case, session(case, CPU))
    except Exception:  # of any kind: onnxruntime cannot run this test, or not as onnx expects
        tally.not_counted.append(case.name)
        return
    try:
        run(case, session(case, NPU))
        tally.passed.append(case.name)
    except Exception as error:
        left = unclaimed(case) if "fallback" in str(error) else set()
        for reason in left:
            tally.not_claimed[reason].add(case.name)
        if not left:
            tally.failed[case.name] = " ".join(str(error).split())[:300]


def session(case: Case, provider: str, cpu: bool = False) -> ort.InferenceSession:
    """A session on one provider, which also leaves nodes to the CPU only if `cpu` says so."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if provider == NPU and not cpu:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    return ort.InferenceSession(case.model.SerializeToString(), options, providers=[provider])


def unclaimed(case: Case) -> set[str]:
    """The nodes that are left to the CPU, each as its operator with the reason."""
    nodes = onnxruntime_npu.assignment(session(case, NPU, cpu=True))
    left = {(n["op_type"], n["reason"]) for n in nodes if n["provider"] != NPU}
    return {f"{op}: {reason}" for op, reason in left if reason and "shape arith" not in reason}


def run(case: Case, on: ort.InferenceSession) -> None:
    """Compares the outputs of every data set with the expected ones."""
    names = [value.name for value in on.get_inputs()]
    for inputs, expected in case.data_sets:
        feeds = {name: ort_value(value) for name, value in zip(names, inputs, strict=False)}
        results = on.run_with_ort_values(None, feeds)
        for got, want in zip(map(array_of, results), map(as_array, expected), strict=True):
            assert got.dtype == want.dtype and got.shape == want.shape, (got.dtype, got.shape)
            rtol = max(case.rtol, ROUNDING.get(str(got.dtype), 0))
            wide = [a.astype(np.float32) if str(a.dtype) in NARROW else a for a in (got, want)]
            np.testing.assert_allclose(*wide, rtol=rtol, atol=case.atol)


def as_array(value) -> np.ndarray:
    """A tensor of a test; dtypes that NumPy lacks are given as protos."""
    return (
        numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    )


def ort_value(value) -> ort.OrtValue:
    """A host tensor of any element type; NumPy's way into onnxruntime does not know all of them."""
    proto = value if isinstance(value, TensorProto) else numpy_helper.from_array(np.asarray(value))
    data = proto.raw_data or numpy_helper.from_array(numpy_helper.to_array(proto)).raw_data
    out = ort.OrtValue.ortvalue_from_shape_and_type(list(proto.dims), proto.data_type)
    ctypes.memmove(out.data_ptr(), data, len(data))
    return out


def array_of(value: ort.OrtValue) -> np.ndarray:
    """The array of a host tensor of any element type."""
    size = value.tensor_size_in_bytes()
    proto = TensorProto(
        data_type=value.element_type(),
        dims=value.shape(),
        raw_data=ctypes.string_at(value.data_ptr(), size) if size else b"",
    )
    return numpy_helper.to_array(proto)


def report(tally: Tally, verbose: bool) -> str:
    """The text that the program prints."""
    lines = [f"FAILED {name}: {error}" for name, error in sorted(tally.failed.items())]
    for reason, names in sorted(tally.not_claimed.items()):
        lines.append(f"not claimed in {len(names)} tests: {reason}")
        lines += [f"    {name}" for name in sorted(names) if verbose]
    counts = [
        f"{len(tally.passed)} passed",
        f"{len(tally.failed)} failed",
        f"{len(tally.unclaimed)} not claimed",
        f"{len(tally.not_counted)} not counted",
    ]
    lines.append(f"{', '.join(counts)}: {tally.share:.1%} passed of those that count")
    return "\n".join(lines)


if __name__ == "__main__":
    ort.set_default_logger_severity(4)  # of this process: tests that call main look at warnings
    sys.exit(main())
