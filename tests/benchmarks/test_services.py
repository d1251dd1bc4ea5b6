"""What the serving benchmark computes from the times of tokens; nothing is timed here."""

from __future__ import annotations

import argparse

import pytest
import services
from services_report import Table
from serving_engines import Loop, prompts


class TwoAtOnce(Loop):
    """Continues at most two requests a step, the oldest ones; each answer has ``count`` tokens."""

    vocabulary = 1000

    def __init__(self) -> None:
        self.left: dict[int, int] = {}
        self.most_running = 0
        self.given: dict[int, list[int]] = {}

    def begin(self, key: int, prompt: list[int], count: int) -> None:
        self.left[key], self.given[key] = count, prompt
        self.most_running = max(self.most_running, len(self.left))

    def step(self) -> tuple[list[int], list[int]]:
        keys = list(self.left)[:2]
        for key in keys:
            self.left[key] -= 1
        ended = [key for key in keys if not self.left[key]]
        for key in ended:
            del self.left[key]
        return keys, ended


def test_each_client_sends_its_next_request_when_the_one_before_has_ended() -> None:
    engine = TwoAtOnce()
    answers = engine.answer(3, 4, 5, 2, [7])
    assert engine.most_running == 3
    assert [len(times) for _, times in answers] == [2] * 12
    assert all(sent <= times[0] <= times[1] for sent, times in answers)
    for key in range(3, 12):  # client key % 3 has sent key - 3 before
        assert answers[key][0] >= answers[key - 3][1][-1]
    assert [engine.given[key] for key in range(12)] == prompts(12, 5, 1000, [7])


def test_columns_of_known_times() -> None:
    answers = [(10.0, [10.5, 11.0, 11.5]), (10.25, [11.25, 12.5])]
    assert services.columns(answers) == pytest.approx([5 / 2.5, 0.75, 0.995, 0.5, 1.235, 2.5])


class Always:
    """A service whose answers take one second for two tokens each."""

    def call(self, method: str, clients: int, each: int, *_: object) -> list:
        assert method == "answer"
        return [(0.0, [0.5, 1.0])] * (clients * each)


def test_each_load_is_reported_when_it_has_ended(capsys) -> None:
    lineup = argparse.Namespace(engines={"npu": Always(), "genai": Always()})
    arguments = argparse.Namespace(
        clients=[1, 4], requests=4, prompt=16, tokens=2, rounds=1, seconds=60
    )
    services.measure(lineup, Table("a model"), arguments, lambda: None)
    reported = capsys.readouterr().err.splitlines()
    assert len(reported) == 8  # two rounds, one to warm up
    assert reported[-1] == "a model: round 1 of 1, 4 clients: genai 8 tokens/s"


def test_table_has_medians_and_the_ratio_of_throughput_by_round() -> None:
    table = Table("a model", missing={"llama.cpp server": "no compiler"})
    for service, speeds in {"npu": (100, 300, 200), "genai": (50, 100, 400)}.items():
        for speed in speeds:
            table.add(4, service, [speed, 0.1, 0.2, 0.01, 0.02, 32])
    text = table.markdown()
    assert "| 4 | npu | 200.0 | 100.0 | 200.0 | 10.0 | 20.0 | 32.0 | - | 3 |" in text
    assert "| 4 | genai | 100.0 | 100.0 | 200.0 | 10.0 | 20.0 | 32.0 | 2.00 | 3 |" in text
    assert "Without llama.cpp server: no compiler" in text


def test_summary_compares_each_measure_with_its_worst_peer() -> None:
    table = Table("a model")
    rounds = {"npu": (300, 0.2), "npu, engine alone": (320, 0.2)}
    peers = {"genai": (100, 0.1), "openvino-genai": (250, 0.3)}
    for service, (speed, first) in (rounds | peers).items():
        table.add(16, service, [speed, first, 0.4, 0.01, 0.02, 32])
    cells = [cell.strip() for cell in (table.verdicts() or "").split("|")]
    assert cells[1:3] == ["a model", "1.20 (openvino-genai)"]
    assert cells[4] == "0.50 (genai)"
    assert cells[6] == "0.94"
