"""What `make bench-check` compares and stores."""

import ratios
import results
from results import Measurement, Run

MACHINE = {"isa": "avx512", "features": ["avx2", "avx512_bf16"], "threads": 2}


def verdicts(stored, measured):
    return {row.name: row.verdict for row in ratios.compare(stored, measured)}


def test_drop_of_more_than_15_percent_is_reported():
    stored = dict.fromkeys(("same", "faster", "at the edge", "below it"), 2.0)
    measured = {"same": 2.0, "faster": 3.0, "at the edge": 1.7001, "below it": 1.69}
    assert verdicts(stored, measured) == {
        "same": "kept",
        "faster": "kept",
        "at the edge": "kept",
        "below it": "fell",
    }
    fallen = ratios.fallen(ratios.compare(stored, measured))
    assert [row.name for row in fallen] == ["below it"]


def test_missing_and_new_rows_are_reported():
    assert verdicts({"gone": 1.0}, {"added": 1.0}) == {"gone": "missing", "added": "new"}


def test_one_slow_measurement_is_not_a_regression():
    stored = {"kernel": 2.0, "slower": 2.0}
    first, again = {"kernel": 1.0, "slower": 1.0}, {"kernel": 1.9, "slower": 1.1}
    together = ratios.keep(max, first, again)
    assert verdicts(stored, together) == {"kernel": "kept", "slower": "fell"}


def test_rows_not_measured_again_keep_their_ratio():
    assert ratios.keep(max, {"a": 1.0, "b": 2.0}, {"a": 1.5}) == {"a": 1.5, "b": 2.0}


def test_stored_ratio_is_the_lowest_measured():
    assert ratios.keep(min, {"a": 3.0}, {"a": 2.0}) == {"a": 2.0}


def test_table_starts_with_the_worst_row():
    rows = ratios.compare({"a": 1.0, "b": 2.0, "c": 2.0}, {"a": 1.1, "b": 1.0, "c": 1.5})
    names = [line.split("|")[1].strip() for line in ratios.table(rows).splitlines()[2:]]
    assert names == ["b", "c", "a"]


def test_ratios_are_computed_per_round():
    """A slow period that affects all engines alike changes no ratio."""
    ours = Measurement("case", "npu", 1, "calls", [1.0, 10.0, 1.0, 10.0])
    peer = Measurement("case", "torch", 1, "calls", [2.0, 20.0, 2.0, 20.0])
    assert results.ratios(Run(["npu"], [ours, peer])) == {"case | npu / torch": 2.0}


def test_storing_ratios_keeps_those_of_other_runs(tmp_path):
    path = tmp_path / "kind.json"
    ratios.store(path, MACHINE, {"a": 1.0, "b": 2.0})
    ratios.store(path, MACHINE, {"b": 3.0})
    assert ratios.load(path) == {"a": 1.0, "b": 3.0}


def test_each_machine_type_has_its_own_file():
    amx = {**MACHINE, "isa": "amx"}
    plain = {**MACHINE, "features": ["avx2"]}
    paths = {ratios.path_for(machine) for machine in (MACHINE, amx, plain)}
    assert len(paths) == 3


def test_saving_a_partial_run_keeps_other_cases(tmp_path):
    path = tmp_path / "run.json"
    results.save(Run(["npu"], [Measurement(c, "npu", 1, "calls", [1.0]) for c in "ab"]), path)
    results.save(Run(["npu"], [Measurement("b", "npu", 1, "calls", [2.0])]), path)
    seconds = {m.case: m.seconds for m in results.load(path).measurements}
    assert seconds == {"a": [1.0], "b": [2.0]}
