"""A short form of `make fuzz`, and that it finds differences."""

from __future__ import annotations

import graph_fuzz
import numpy as np
import pytest
from random_graph import random_graph


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_models_give_what_the_cpu_gives(first) -> None:
    for seed in range(first, first + 20):
        graph_fuzz.check(seed)


def test_a_seed_makes_the_same_model_and_other_seeds_make_others() -> None:
    first, again, other = (random_graph(seed)[0].SerializeToString() for seed in (7, 7, 8))
    assert first == again and first != other
    sizes = [len(random_graph(seed)[0].graph.node) for seed in range(100)]
    assert min(sizes) >= 5 and max(sizes) <= 30
    operators = {n.op_type for seed in range(100) for n in random_graph(seed)[0].graph.node}
    assert len(operators) > 40


def test_a_wrong_result_is_found(monkeypatch, capsys) -> None:
    run = graph_fuzz.ort.InferenceSession.run

    def run_wrong(session, names, feeds):
        results = run(session, names, feeds)
        if graph_fuzz.NPU in session.get_providers():
            results[-1] = results[-1] + np.array(1, results[-1].dtype)
        return results

    monkeypatch.setattr(graph_fuzz.ort.InferenceSession, "run", run_wrong)
    assert graph_fuzz.main(["--seed", "3", "--count", "2"]) == 1
    assert "seed 3, " in capsys.readouterr().out
