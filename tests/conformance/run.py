"""Runs the public conformance suites: ``make conformance PATH="op-plugin pytorch"``.

Runs the tests of checkouts of Ascend/op-plugin and Ascend/pytorch, unmodified, with
``install_as_torch_npu()``: each file in a process of its own with a time limit. Prints a line per
file, each failure and skip with its reason, and whether nine of ten tests pass of those that use
only what is built (eligibility.py). Exit code 0 if they do, 1 if not, 2 for bad arguments.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import re
import sys
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

# The suites query the product by name and skip tests that it does not support.
PRODUCT = "Ascend910B2"
DEVICES = 2
_FILES_BETWEEN_RESULTS = 50  # an interrupted run leaves these results for --again


def main(arguments=None):
    """Runs the suites below the given folders; returns the exit code."""
    options = _options(arguments)
    _prepare_environment()
    import conformance_report
    from suites import Limits, Runner

    files = _chosen(options.paths, options.only)
    if not files:
        print(
            f"no test files in {', '.join(map(str, options.paths))}: expected checkouts of "
            "Ascend/op-plugin and Ascend/pytorch, or a folder that holds them, such as "
            "make conformance PATH=/tmp/checkouts",
            file=sys.stderr,
        )
        return 2
    results = options.out / "results.json"
    kept = _passed_files(json.loads(results.read_text())) if options.again else {}
    if options.counted_only:
        kept |= conformance_report.not_counted([f for f in files if (f[0], f[1].name) not in kept])
    runner = Runner(options.out / "logs", Limits(options.test_seconds, options.file_seconds))
    judged = []
    for runs in _run_all(runner, files, options.jobs, kept):
        judged = conformance_report.judge(runs)
        results.write_text(json.dumps([asdict(row) for row in judged], indent=1))
    print(conformance_report.text(judged))
    if options.write_docs:
        (ROOT / "docs" / "conformance.md").write_text(conformance_report.summary(judged))
        whole = Path(__file__).with_name("report.md")
        whole.write_text(conformance_report.report(judged))
    return 0 if conformance_report.bar_is_met(judged) else 1


def _options(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path, help="checkouts, or folders of checkouts")
    parser.add_argument(
        "--only", default="", help="files of which `suite/name` matches this pattern"
    )
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 4))
    parser.add_argument("--test-seconds", type=float, default=60, help="limit of one test")
    parser.add_argument("--file-seconds", type=float, default=600, help="limit of one file")
    parser.add_argument(
        "--counted-only", action="store_true", help="skip files of whose tests none counts"
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="only files where a test that counts failed last time, or that were not reached",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "conformance")
    parser.add_argument(
        "--write-docs", action="store_true", help="rewrite docs/conformance.md and the report"
    )
    return parser.parse_args(arguments)


def _prepare_environment():
    """The environment that every process of the run inherits."""
    paths = [str(HERE), str(HERE / "shim"), str(ROOT / "python")]
    sys.path[:0] = [paths[0], paths[2]]
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    os.environ.setdefault("ORT_NPU_DEVICE_NAME", PRODUCT)
    os.environ.setdefault("ORT_NPU_DEVICE_COUNT", str(DEVICES))
    os.environ.setdefault("ORT_NPU_MEMORY_LIMIT", str(_device_memory()))
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the CPU side of a comparison


def _chosen(paths, pattern):
    """(suite, file) of the test files below ``paths`` whose ``suite/name`` matches."""
    from suites import find_files

    return [f for f in find_files(paths) if re.search(pattern, f"{f[0]}/{f[1].name}")]


def _device_memory():
    """Bytes for each logical device: the devices of a job together take half of the memory."""
    have = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):  # of a container
        with contextlib.suppress(OSError, ValueError):
            have.append(int(Path("/sys/fs/cgroup", limit).read_text()))
    return min(have) // 2 // DEVICES


def _passed_files(rows):
    """Outcomes by (suite, file) of an earlier run's files without a counted failure."""
    from suites import Outcome

    files, failed = {}, set()
    for row in rows:
        file = row["suite"], row["file"]
        outcome = Outcome(row["outcome"], row["reason"], row["seconds"])
        files.setdefault(file, {})[row["test"]] = outcome
        if row["outcome"] == "failed" and not row["not_counted"]:
            failed.add(file)
    return {file: tests for file, tests in files.items() if file not in failed}


def _run_all(runner, files, jobs, kept):
    """Yields the completed runs from time to time, and those of all files at the end."""
    from suites import FileRun
    from tqdm import tqdm

    def ended():
        return [
            futures[file].result()
            if file in futures
            else FileRun(*file, kept[file[0], file[1].name])
            for file in files
            if file not in futures or futures[file].done()
        ]

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = {
            file: pool.submit(runner.run, *file)
            for file in files
            if (file[0], file[1].name) not in kept
        }
        finished = concurrent.futures.as_completed(futures.values())
        for i, _ in enumerate(tqdm(finished, total=len(futures), unit="file", smoothing=0.05)):
            if i % _FILES_BETWEEN_RESULTS == _FILES_BETWEEN_RESULTS - 1:
                yield ended()
    yield ended()


if __name__ == "__main__":
    sys.exit(main())
