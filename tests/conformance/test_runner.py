"""The runner of the public suites, on a toy suite with every outcome a test can have."""

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

SUITE = """
import multiprocessing
import os
import time
import unittest

import torch
import torch_npu
from torch_npu.testing.common_utils import SupportedDevices, create_common_tensor
from torch_npu.testing.decorator import Dtypes, instantiate_tests
from torch_npu.testing._internal.common_dtensor import NPUDTensorTestBase  # noqa: F401
from torch_npu.testing.testcase import TestCase, run_tests


def rank(number, queue):
    device = torch.ones(1, device="npu").device.type
    queue.put((number, device, os.environ["OF_TEST"], torch.full((2,), number)))


@instantiate_tests
class TestToy(TestCase):
    def test_ranks(self):
        os.environ["OF_TEST"] = "a value"
        spawn = multiprocessing.get_context("spawn")
        queue = spawn.Queue()
        ranks = [spawn.Process(target=rank, args=(number, queue)) for number in range(2)]
        for process in ranks:
            process.start()
        time.sleep(2)  # the ranks have ended by then, but for the tensors that nobody has taken
        told = sorted((queue.get(timeout=60) for _ in ranks), key=lambda told: told[0])
        for process in ranks:
            process.join()
        self.assertEqual([process.exitcode for process in ranks], [0, 0])
        for number, (*rest, tensor) in enumerate(told):
            self.assertEqual(rest, [number, "npu", "a value"])
            self.assertEqual(tensor.tolist(), [number, number])

    def test_passes(self):
        x, x_npu = create_common_tensor([torch.float32.__str__()[6:], 2, (3, 4)], -1, 1)
        self.assertRtolEqual(x.abs().numpy(), x_npu.abs().cpu().numpy())

    @Dtypes(torch.float32, torch.float16)
    def test_dtypes(self, dtype, device="npu"):
        self.assertEqual(torch.ones(2, dtype=dtype, device=device).dtype, dtype)

    def test_two_devices(self):
        self.assertEqual(torch.npu.device_count(), 2)
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        for device in range(2):
            self.assertLessEqual(torch.npu.get_device_properties(device).total_memory, memory // 4)

    def test_fails(self):
        self.assertRtolEqual(torch.zeros(3), torch.ones(3))

    def test_hangs(self):
        time.sleep(3600)

    def test_ends_its_process(self):
        os._exit(3)

    @unittest.skip("not today")
    def test_skipped(self):
        pass

    @SupportedDevices(["Ascend310P"])
    def test_for_another_product(self):
        pass

    def test_uses_what_is_not_built(self):
        torch_npu.npu_no_such_operator(torch.ones(2))

    def helper(self):
        torch.npu.no_such_name()

    def test_uses_it_by_a_helper(self):
        self.helper()


class TestFixture(TestCase):
    @classmethod
    def setUpClass(cls):
        raise RuntimeError("no ground to stand on")

    def test_never_runs(self):
        pass


if __name__ == "__main__":
    run_tests()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Exit code, output and rows by test of a run over the toy suite and a file that is broken."""
    pytest.importorskip("torch")
    from onnxruntime_npu import torch_device

    if not torch_device.is_built():
        pytest.skip("this build has no torch device")
    folder = tmp_path_factory.mktemp("checkout")
    tests = folder / "op-plugin" / "test" / "test_base_ops"
    tests.mkdir(parents=True)
    (tests / "test_toy.py").write_text(SUITE)
    (tests / "test_broken.py").write_text("import no_such_module\n\n" + SUITE)
    command = [sys.executable, str(HERE / "run.py"), str(folder)]
    command += ["--out", str(folder / "out"), "--test-seconds", "20", "--jobs", "2"]
    command += ["--only", "test_toy"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    command[-1:] = ["", "--resume"]  # the rest
    rest = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert "1/1" in rest.stderr and "test_toy" in rest.stdout
    rows = json.loads((folder / "out" / "results.json").read_text())
    by_test = {row["test"]: row for row in rows if row["file"] == "test_toy.py"}
    broken = [row for row in rows if row["file"] == "test_broken.py"]
    return done, by_test, broken


def test_every_test_outcome_is_reported(run):
    done, rows, _ = run
    ends = {name.partition(".")[2]: (row["outcome"], row["reason"]) for name, row in rows.items()}
    assert ends.pop("test_hangs")[1].startswith("hangs: stopped after")
    assert ends.pop("test_fails")[1].startswith("AssertionError: 3 of 3 values differ")
    assert ends == {
        "test_passes": ("passed", ""),
        "test_ranks": ("passed", ""),
        "test_two_devices": ("passed", ""),
        "test_dtypes_float32": ("passed", ""),
        "test_dtypes_float16": ("passed", ""),
        "test_ends_its_process": ("failed", "ends its process: exit code 3"),
        "test_skipped": ("skipped", "not today"),
        "test_for_another_product": ("skipped", "for ['Ascend310P'], not for Ascend910B"),
        "test_uses_what_is_not_built": (
            "failed",
            "AttributeError: module 'onnxruntime_npu.ops' has no operator 'npu_no_such_operator'",
        ),
        "test_uses_it_by_a_helper": (
            "failed",
            "AttributeError: module 'onnxruntime_npu.npu' has no attribute 'no_such_name'",
        ),
        "test_never_runs": ("failed", "RuntimeError: no ground to stand on"),
    }, done.stdout + done.stderr


def test_tests_of_missing_operators_are_not_counted(run):
    done, rows, broken = run
    reasons = {name: row["not_counted"] for name, row in rows.items() if row["not_counted"]}
    assert reasons == {
        "TestToy.test_uses_what_is_not_built": "torch_npu.npu_no_such_operator is not built",
        "TestToy.test_uses_it_by_a_helper": "torch.npu.no_such_name is not built",
    }
    assert {row["outcome"] for row in broken} == {"failed"}
    assert {row["not_counted"] for row in broken} == {
        "imports no_such_module, which is not installed"
    }
    assert done.returncode == 1
    assert "passed: 5 of 9 (55.6 %); the bar of 90% is not met" in done.stdout


def test_names_used_at_import_apply_to_all_tests_of_a_file(tmp_path):
    sys.path.insert(0, str(HERE))
    from eligibility import Names, TestFile

    names = Names({"torch_npu.npu_x", "torch_npu.npu.Stream", "torch_npu.npu.utils.known"})

    def reason(head, body="torch.npu.Stream.priority_range()"):
        file = tmp_path / "test_file.py"
        tail = f"class T(TestCase):\n    def test_a(self):\n        {body}\n"
        file.write_text(f"import torch\nimport torch_npu\n{head}\n{tail}")
        return TestFile(file, names).why_not("T.test_a")

    assert reason("import torch_npu.npu.utils as utils") == ""
    assert reason("", "x.npu_x()") == ""
    assert reason("", "x.npu_y()") == "torch_npu.npu_y is not built"
    assert reason("", "torch.cuda.is_available()") == "needs CUDA (torch.cuda)"
    assert "torch_npu.npu.utils.unknown is not built" in reason(
        "import torch_npu.npu.utils as utils", "utils.unknown()"
    )
    assert "torch_npu._inductor, which is not built" in reason("import torch_npu._inductor")
    assert reason("from torch.nn import init") == reason("import torch.nn.functional as F") == ""
    assert reason("from torch._C._distributed_c10d import Store") == ""  # made by compiled code
    assert reason("import torch.backends.cudnn as cudnn") == ""  # an object, not a module
    assert reason("from torch.nn import functional, Module") == ""
    assert reason("from torch.nn import Module, NoModule") == (
        "imports torch.nn.NoModule, which this torch does not have"
    )
    for module in ("torch.no_module", "torch.no_package.module"):
        missing = f"imports {module}, which this torch does not have"
        assert reason(f"from {module} import x") == reason(f"import {module}") == missing
    assert "torch.npu.other is not built" in reason("torch.npu.other(1)")
    assert "torch.npu.other is not built" in reason("VALUE = torch.npu.other()", "VALUE()")


def test_the_error_of_a_rank_is_told():
    sys.path.insert(0, str(HERE))
    from worker import _reason

    try:
        raise ValueError("first\nsecond")
    except ValueError:
        told = traceback.format_exc()
    assert _reason(ValueError("\n first\nsecond")) == "ValueError: first"
    ranks = RuntimeError(f"Process 1 exited with error code 10 and exception:\n{told}\n")
    assert _reason(ranks) == "RuntimeError: ValueError: first"
    assert _reason(TimeoutError()) == "TimeoutError"


def test_class_qualified_method_call_counts_only_that_method(tmp_path):
    sys.path.insert(0, str(HERE))
    from eligibility import Names, TestFile

    file = tmp_path / "test_file.py"
    file.write_text("""
class T(TestCase):
    def helper(self):
        x.npu_y()

    def test_a(self):
        T.helper(self)

    def test_b(self):
        T.other(self)

    def other(self):
        pass
""")
    tests = TestFile(file, Names({"torch_npu.npu_x"})).tests
    assert tests == {"T.test_a": "torch_npu.npu_y is not built", "T.test_b": ""}


def test_suite_folders_and_device_files_are_discovered(tmp_path):
    sys.path.insert(0, str(HERE))
    from suites import find_files, name_in_suite

    names = ("npu/test_a.py", "npu/deep/test_a.py", "nn/test_c.py", "test_npu_d.py", "test_e.py")
    for name in names:
        file = tmp_path / "pytorch" / "test" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    found = {f"{suite}/{name_in_suite(suite, file)}" for suite, file in find_files([tmp_path])}
    top = {"pytorch/test/test_npu_d.py"}
    assert found == top | {"pytorch/test/npu/test_a.py", "pytorch/test/npu/deep/test_a.py"}


def test_results_of_runs_of_some_files_are_kept(tmp_path):
    sys.path.insert(0, str(HERE))
    import conformance_report
    from kept_results import KeptResults
    from suites import FileRun, Outcome

    source = "class T:\n    def test_a(self):\n        {}\n"
    bodies = {"a": "pass", "b": "x.npu_no_such_operator()", "c": "pass", "d": "pass"}
    found = []
    for name, body in bodies.items():
        suite = "s/one" if name < "c" else "s/two"
        found.append((suite, tmp_path / suite / name / "test_it.py"))  # all of one file name
        found[-1][1].parent.mkdir(parents=True)
        found[-1][1].write_text(source.format(body))
    path = tmp_path / "results.json"

    def run(i, outcome, date):
        return FileRun(*found[i], {"T.test_a": Outcome(outcome)}, date=date)

    first = KeptResults(path, found)
    for i, outcome in enumerate(("failed", "failed", "passed")):
        first.take(run(i, outcome, "2001-01-01"))

    kept = KeptResults(path, found)
    assert kept.without(found) == found[3:]
    assert kept.failed(found) == found[:1]  # what does not count is not run again
    assert kept.files() == {"s/one": (2, 2), "s/two": (1, 2)}
    page = conformance_report.summary(kept.rows(), kept.files())
    assert "Run on 2001-01-01. There are results of 3 of 4 files" in page
    assert "| s/two | 2 | 1 | 1 | 0 | 0 | 1 | 1 |" in page
    assert "passed: 1 of 2 (50.0 %)" in page

    kept.take(run(0, "passed", "2002-02-02"))
    kept.take(run(3, "skipped", "2002-02-02"))
    again = KeptResults(path, found)
    assert again.without(found) == again.failed(found) == []
    assert [row.outcome for row in again.rows(found[2:])] == ["passed", "skipped"]
    page = conformance_report.summary(again.rows(), again.files())
    assert "Run on 2001-01-01 to 2002-02-02. There are results of all 4 files." in page
    assert "passed: 2 of 2 (100.0 %)" in page


def test_a_report_is_kept_where_nothing_ran_since(tmp_path):
    sys.path.insert(0, str(HERE))
    import conformance_report
    from kept_results import KeptResults
    from suites import FileRun, Outcome

    methods = "".join(f"    def test_{name}(self):\n        {body}\n" for name, body in {
        "a": "pass", "b": "pass", "c": "x.npu_no_such_operator()", "d": "pass",
    }.items())  # fmt: skip
    found = [("s/test", tmp_path / "s/test" / name / "test_it.py") for name in "xyz"]
    for _, path in found:
        path.parent.mkdir(parents=True)
        path.write_text(f"class T:\n{methods}")
    ends = {"a": ("passed", ""), "b": ("failed", "Error: 1 | 2 < 3"), "c": ("failed", "Other")}
    tests = {f"T.test_{name}": Outcome(*end) for name, end in ends.items()}
    first = KeptResults(tmp_path / "one.json", found)
    for where in found[:2]:
        first.take(FileRun(*where, tests | {"T.test_d": Outcome("skipped")}, date="2001-01-01"))
    report = conformance_report.report(first.rows(), first.files())

    kept = KeptResults(tmp_path / "two.json", found, report=report)
    again = conformance_report.report(kept.rows(), kept.files())
    whole, files = (text[text.index("## Files") :] for text in (report, again))
    assert whole == files and "| 1 | 2 | 1 | 2 | 2001-01-01 |" in files
    assert report[: report.index("## Why")] == again[: again.index("## Why")]
    assert kept.without(found) == found  # a run of all gives all their reasons again
    kept.take(FileRun(*found[1], {"T.test_a": Outcome("passed")}, date="2002-02-02"))
    page = conformance_report.summary(kept.rows(), kept.files())
    assert "Run on 2001-01-01 to 2002-02-02. There are results of 2 of 3 files" in page
    assert "| s/test | 3 | 2 | 2 | 2 | 1 | 3 | 2 |" in page

    third = KeptResults(
        tmp_path / "three.json", found, added=[tmp_path / "two.json"], report=report
    )
    assert third.rows() == kept.rows()
    assert third.without(found) == [found[0], found[2]]


def test_files_without_counted_tests_can_be_excluded(tmp_path):
    sys.path.insert(0, str(HERE))
    import conformance_report
    from eligibility import Names

    (tmp_path / "test_a.py").write_text("class T:\n    def test_a(self):\n        x.npu_y()\n")
    (tmp_path / "test_b.py").write_text("class T:\n    def test_b(self):\n        pass\n")
    files = [("s", tmp_path / "test_a.py"), ("s", tmp_path / "test_b.py")]
    left_out = conformance_report.not_counted(files, Names({"torch_npu.npu_x"}))
    assert list(left_out) == [("s", "test_a.py")]
    assert left_out["s", "test_a.py"]["T.test_a"].outcome == "skipped"


def test_missing_suites_is_a_usage_error(tmp_path):
    command = [sys.executable, str(HERE / "run.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 2
    assert "expected checkouts" in done.stderr


def test_make_path_argument_does_not_change_environment_path(tmp_path):
    makefile = [f"--makefile={ROOT / 'Makefile'}", f"--directory={ROOT}", "--silent"]
    recipe = "--eval=show: ; @echo $(SUITES) && echo $$PATH"
    command = ["make", *makefile, f"PATH={tmp_path}", recipe, "show"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.stdout.splitlines() == [str(tmp_path), os.environ["PATH"]], done.stderr
