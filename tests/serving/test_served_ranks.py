"""A model of several ranks behind the server: equal tokens, and ranks that end or stand still."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from onnxruntime_npu import cli
from onnxruntime_npu.exporter import export_causal_lm

from .conftest import byte_tokenizer, reference_model, sized

RANKS = 2
MARK = f"TEST_OF_RANKS={os.getpid()}"  # in the environment of the ranks
PROMPTS = ["one" * 20, "two" * 18, "three" * 9, "a"]


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """The tiny model, divided among ranks."""
    directory = tmp_path_factory.mktemp("ranks") / "tiny"
    tokenizer = byte_tokenizer()
    model = reference_model()
    export_causal_lm(model, directory, cache="paged", tokenizer=tokenizer, tensor_parallel=RANKS)
    for rank in range(RANKS):
        sized(directory / f"rank_{rank}", num_blocks=64, max_batch_size=16)
    return directory


def complete(server, prompt, **options):
    options = {"max_tokens": 40, "temperature": 0, **options}
    return server.client.completions.create(model="tiny", prompt=prompt, **options)


def rank_processes():
    """Return the processes of the ranks that this process's servers have, the first rank first."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # no process, or another user's
            continue
        rank = next((v for v in variables if v.startswith(b"PMI_RANK=")), None)
        if rank and MARK.encode() in variables:
            found[int(rank.partition(b"=")[2])] = int(entry.name)
    assert sorted(found) == list(range(RANKS))
    return [found[rank] for rank in range(RANKS)]


@pytest.fixture
def divided(serve, parts):
    """A server of the parts."""
    name, _, value = MARK.partition("=")
    started = serve("--ranks", str(RANKS), directory=parts, **{name: value})
    return started.wait_until_ready()


def test_the_tokens_are_those_of_one_rank(divided, server):
    expected = [complete(server, prompt).choices[0].text for prompt in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        answers = list(threads.map(lambda prompt: complete(divided, prompt), PROMPTS))
    assert [answer.choices[0].text for answer in answers] == expected
    drawn = [complete(divided, "a", temperature=1, seed=5).choices[0].text for _ in range(2)]
    assert drawn[0] == drawn[1]
    scored = complete(divided, "a", logprobs=1).choices[0].logprobs
    whole = complete(server, "a", logprobs=1).choices[0].logprobs
    assert scored.tokens == whole.tokens
    # Sums over ranks have another order.
    assert scored.token_logprobs == pytest.approx(whole.token_logprobs, abs=1e-3)
    memory = divided.metric('npu_resident_bytes{process="engine"}')
    assert memory > server.metric('npu_resident_bytes{process="engine"}')

    # A rank dies while nothing runs: it is seen, and the ranks are started again.
    before = rank_processes()
    os.kill(before[1], signal.SIGKILL)
    divided.wait_for("npu_engine_restarts_total", 1)
    divided.wait_until_ready()
    assert set(before).isdisjoint(rank_processes())
    assert complete(divided, PROMPTS[0]).choices[0].text == expected[0]
    left = rank_processes()
    log = divided.stop()
    assert divided.process.returncode == 0, log
    assert not any(Path(f"/proc/{process}").exists() for process in left)


@pytest.mark.slow
def test_a_rank_dies_while_it_is_needed(divided):
    """The answer ends with an error that names it, and the ranks are started again."""
    expected = complete(divided, PROMPTS[1]).choices[0].text
    second = rank_processes()[1]
    os.kill(second, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(complete, divided, "a")
        divided.wait_for("npu_requests_queued", 1)
        os.kill(second, signal.SIGKILL)
        with pytest.raises(openai.InternalServerError, match=f"rank 1 of {RANKS} ended") as error:
            answer.result()
    assert error.value.status_code == 503
    with pytest.raises(openai.InternalServerError, match="the engine is starting again"):
        complete(divided, "a")
    divided.wait_until_ready()
    assert complete(divided, PROMPTS[1]).choices[0].text == expected


def test_mistakes_are_one_line(served_directory, encoder_directory, parts, capsys):
    def one_line(*arguments):
        assert cli.main([str(argument) for argument in arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    def refused(directory, *arguments):
        return one_line("serve", directory, "--port", 0, *arguments)

    assert "expected --ranks 2 for" in refused(parts)
    assert "which holds the parts of 2 ranks, got 3" in refused(parts, "--ranks", "3")
    for whole in (served_directory, encoder_directory):
        line = refused(whole, "--ranks", "2")
        assert "expected --ranks 1" in line and "a model that is not divided, got 2" in line
    for directory, holds in ((parts, "the parts of 2 ranks"), (served_directory, "not divided")):
        line = one_line("generate", directory, "--prompt", "a", "--ranks", 3)
        assert f"{holds}, got 3" in line
    assert "ranks need the provider npu" in refused(parts, "--ranks", "2", "--provider", "cpu")
