"""Runs the public conformance suites: ``make conformance PATH="op-plugin pytorch"``.

Runs the tests of checkouts of Ascend/op-plugin and Ascend/pytorch, unmodified, with
``install_as_torch_npu()``: each file in a process of its own with a time limit. Prints a line per
file, each failure and skip with its reason, and whether nine of ten tests pass of those that use
only what is built (eligibility.py). Exit code 0 if they do, 1 if not, 2 for bad arguments.
"""

import argparse
import concurrent.futures
import datetime
import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

# The suites query the product by name and skip tests that it does not support.
PRODUCT = "Ascend910B2"


def main(arguments=None):
    """Runs the suites below the given folders; returns the exit code."""
    options = _options(arguments)
    _prepare_environment()
    import conformance_report
    from kept_results import KeptResults
    from suites import FileRun, Limits, Runner, find_files, name_in_suite

    found = find_files(options.paths)
    chosen = [f for f in found if re.search(options.only, f"{f[0]}/{name_in_suite(*f)}")]
    if not chosen:
        print(
            f"no test files in {', '.join(map(str, options.paths))}: expected checkouts of "
            "Ascend/op-plugin and Ascend/pytorch, or a folder that holds them, such as "
            "make conformance PATH=/tmp/checkouts",
            file=sys.stderr,
        )
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    report = HERE / "report.md"
    earlier = report.read_text() if report.exists() else ""
    results = KeptResults(options.out / "results.json", found, added=options.add, report=earlier)
    files = chosen
    if options.resume or options.again:
        files = results.without(chosen) + (results.failed(chosen) if options.again else [])
    today = datetime.date.today().isoformat()
    if options.counted_only:
        skipped = conformance_report.not_counted(files)
        for suite, file in files:
            tests = skipped.get((suite, name_in_suite(suite, file)))
            if tests:
                results.take(FileRun(suite, file, tests, date=today))
        files = [f for f in files if (f[0], name_in_suite(*f)) not in skipped]
    runner = Runner(options.out / "logs", Limits(options.test_seconds, options.file_seconds))
    for run in _run_all(runner, files, options.jobs):
        run.date = today
        results.take(run)
    print(conformance_report.text(results.rows(chosen)))
    if options.write_docs:
        rows = results.rows()
        page = conformance_report.summary(rows, results.files())
        (ROOT / "docs" / "conformance.md").write_text(page)
        report.write_text(conformance_report.report(rows, results.files()))
    return 0 if conformance_report.bar_is_met(results.rows(chosen)) else 1


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
        "--resume", action="store_true", help="only files without results of an earlier run"
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="only files where a test that counts failed last time, or that have no results",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "build" / "conformance",
        help="folder of the logs and of results.json, which keeps the results of other files",
    )
    parser.add_argument(
        "--add",
        nargs="+",
        default=[],
        type=Path,
        help="results.json of other runs, for files that --out has no results of",
    )
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help="rewrite docs/conformance.md and the report from all results, of any --only; of files "
        "without any, it keeps what it has, with the date",
    )
    return parser.parse_args(arguments)


def _prepare_environment():
    """The environment that every process of the run inherits."""
    paths = [str(HERE), str(HERE / "shim"), str(ROOT / "python")]
    sys.path[:0] = [paths[0], paths[2]]
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    programs = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    os.environ["PATH"] = os.pathsep.join(programs)  # which tests start by name, such as torchrun
    os.environ.setdefault("ORT_NPU_DEVICE_NAME", PRODUCT)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the CPU side of a comparison


def _run_all(runner, files, jobs):
    """Yields the run of each file as it completes."""
    from tqdm import tqdm

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(runner.run, *file) for file in files]
        finished = concurrent.futures.as_completed(futures)
        for future in tqdm(finished, total=len(futures), unit="file", smoothing=0.05):
            yield future.result()


if __name__ == "__main__":
    sys.exit(main())
