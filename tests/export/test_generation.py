"""Generation: sampling, stopping, streaming, errors."""

from __future__ import annotations

import gc
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_npu
import pytest
from onnxruntime_npu.errors import ArgumentError
from onnxruntime_npu.exporter.sampling_graph import SAMPLER_FILE, write_sampler
from onnxruntime_npu.generation import CausalLM
from onnxruntime_npu.sampling import Chooser, Sampler, open_sampler

from .conftest import PROMPTS

LOGITS = np.log(np.array([[0.05, 0.5, 0.15, 0.3]], np.float32))
PROVIDERS = ["NPUExecutionProvider", "CPUExecutionProvider"]


@pytest.fixture(scope="module")
def sampling(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sampling")
    write_sampler(directory / SAMPLER_FILE)
    return directory


def drawn(directory, sampler, count=4000, provider=PROVIDERS[0], logits=LOGITS):
    """Return how often each token is drawn."""
    session = None if sampler.greedy else open_sampler(directory, [provider])
    choose = Chooser(sampler, session)
    rows = np.repeat(logits, count, axis=0)[:, None]
    counts = np.bincount(choose(ort.OrtValue.ortvalue_from_numpy(rows)), minlength=logits.size)
    return counts / count


def test_greedy_generation(tmp_path):
    assert drawn(tmp_path, Sampler(), 3).tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temperature": 1.0}, [0.05, 0.5, 0.15, 0.3]),
        ({"temperature": 0.5}, [0.0068, 0.6849, 0.0616, 0.2466]),
        ({"temperature": 1.0, "top_k": 2}, [0, 0.625, 0, 0.375]),
        ({"temperature": 1.0, "top_k": 9}, [0.05, 0.5, 0.15, 0.3]),
        ({"temperature": 1.0, "top_p": 0.9}, [0, 0.5263, 0.1579, 0.3158]),
        ({"temperature": 1.0, "top_p": 0.45}, [0, 1, 0, 0]),
        ({"temperature": 1.0, "top_k": 3, "top_p": 0.8}, [0, 0.625, 0, 0.375]),
        # min_p: at least this times 0.5; after top-p, whose mass it does not change.
        ({"temperature": 1.0, "min_p": 0.2}, [0, 0.5263, 0.1579, 0.3158]),
        ({"temperature": 0.5, "min_p": 0.2}, [0, 0.7353, 0, 0.2647]),
        ({"temperature": 1.0, "min_p": 0.4, "top_p": 0.9}, [0, 0.625, 0, 0.375]),
        ({"temperature": 1.0, "min_p": 1.0}, [0, 1, 0, 0]),
        ({"temperature": 1e-6}, [0, 1, 0, 0]),
    ],
)
def test_sampled_frequencies(sampling, settings, expected, provider):
    # 4000 draws: the standard error is below 0.008.
    frequencies = drawn(sampling, Sampler(seed=1, **settings), provider=provider)
    np.testing.assert_allclose(frequencies, expected, atol=0.03)


def test_last_position_is_sampled(sampling):
    rows = np.stack([LOGITS[0, ::-1], LOGITS[0]])[None].repeat(50, axis=0)
    choose = Chooser(Sampler(temperature=1e-6), open_sampler(sampling, PROVIDERS[:1]))
    assert set(choose(ort.OrtValue.ortvalue_from_numpy(rows))) == {1}


def test_large_vocabulary_is_sampled_uniformly(sampling):
    vocabulary = 50_000
    logits = np.zeros((1, vocabulary), np.float32)
    tokens = np.flatnonzero(drawn(sampling, Sampler(temperature=1.0, seed=5), 64, logits=logits))
    assert len(tokens) > 60 and tokens.max() < vocabulary
    # The mean of 64 even draws: 5 standard errors.
    assert abs(tokens.mean() / vocabulary - 0.5) < 5 * 0.289 / 8


def test_same_seed_repeats_tokens(sampling):
    one, two, other = (drawn(sampling, Sampler(1.0, seed=s), 50) for s in (3, 3, 4))
    assert np.array_equal(one, two) and not np.array_equal(one, other)


def test_sampling_requires_the_sampling_graph(tmp_path):
    with pytest.raises(ArgumentError, match=r"holds no sampler.onnx: export the model again"):
        open_sampler(tmp_path, PROVIDERS[:1])


def test_a_sampling_graph_without_min_p_refuses_it(sampling, tmp_path):
    model = onnx.load(sampling / SAMPLER_FILE)
    graph = model.graph
    del graph.input[[value.name for value in graph.input].index("min_p")]
    graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1, np.float32), "min_p"))
    onnx.save(model, tmp_path / SAMPLER_FILE)
    expected = drawn(sampling, Sampler(1.0, seed=3), 50)
    assert np.array_equal(drawn(tmp_path, Sampler(1.0, seed=3), 50), expected)
    with pytest.raises(ArgumentError, match=r"min_p expected .*: export the model again"):
        drawn(tmp_path, Sampler(1.0, min_p=0.1), 50)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"seed": -1},
        {"min_p": -0.1},
        {"min_p": 1.5},
        {"temperature": "hot"},
        {"temperature": None},
        {"top_k": 2.5},
        {"top_k": None},
        {"seed": 1.5},
        {"seed": True},
        {"temperature": True},
    ],
)
def test_sampler_refuses_bad_arguments(settings):
    with pytest.raises(ArgumentError, match=f"expected .*{next(iter(settings))}"):
        Sampler(**settings)


def graph_option(graphs):
    return [("NPUExecutionProvider", {"enable_npu_graph": graphs})]


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_graphs_do_not_change_tokens(exported, kind):
    _, directory, _ = exported(kind, cache="static")
    captured = CausalLM(directory)
    plain = CausalLM(directory, providers=graph_option("0"))
    for prompts, count in [(PROMPTS, 20), (PROMPTS, 9), (PROMPTS[:1], 20), ([[5]], 3)]:
        expected = plain.generate_tokens(prompts, max_new_tokens=count).tokens
        assert captured.generate_tokens(prompts, max_new_tokens=count).tokens == expected


def test_decode_steps_are_graph_replays(exported):
    _, directory, _ = exported("llama", cache="static")
    model = CausalLM(directory)
    model.stop_tokens = frozenset()
    model.generate_tokens([[1, 2]], max_new_tokens=2)
    onnxruntime_npu._C.start_launch_trace()
    model.generate_tokens([[1, 2]], max_new_tokens=6)
    spans = [span[0] for span in onnxruntime_npu._C.stop_launch_trace()]
    assert spans.count("graph") == 5  # the prompt runs without a graph


def test_parallel_execution_mode_runs_without_graphs(exported):
    _, directory, _ = exported("llama", cache="static")
    options = ort.SessionOptions()
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    model = CausalLM(directory, session_options=options)
    expected = CausalLM(directory).generate_tokens(PROMPTS, max_new_tokens=5).tokens
    assert model.generate_tokens(PROMPTS, max_new_tokens=5).tokens == expected


def test_threads_can_share_a_model(exported):
    _, directory, _ = exported("llama", cache="static")
    model = CausalLM(directory)
    expected = model.generate_tokens(PROMPTS, max_new_tokens=12).tokens
    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(model.generate_tokens, PROMPTS, max_new_tokens=12) for _ in range(9)]
        assert all(run.result().tokens == expected for run in runs)


@pytest.mark.usefixtures("still_memory")
def test_memory_is_freed_with_the_model(exported):
    _, directory, _ = exported("llama", cache="static")
    gc.collect()
    before = onnxruntime_npu.npu.memory_allocated()
    model = CausalLM(directory)
    for count in (3, 9):
        model.generate_tokens(PROMPTS, max_new_tokens=count, sampler=Sampler(1.0, top_k=5))
    del model
    gc.collect()
    assert onnxruntime_npu.npu.memory_allocated() == before


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_batch_rows_are_independent(exported, cache):
    _, directory, _ = exported("llama", cache=cache)
    model = CausalLM(directory, providers=["CPUExecutionProvider"])
    together = model.generate_tokens(PROMPTS, max_new_tokens=10).tokens
    alone = [model.generate_tokens([p], max_new_tokens=10).tokens[0] for p in PROMPTS]
    assert together == alone


def test_row_stops_at_its_stop_token_while_others_continue(exported):
    _, directory, _ = exported("llama", cache="dynamic")
    model = CausalLM(directory, providers=["CPUExecutionProvider"])
    model.stop_tokens = frozenset()
    free = model.generate_tokens(PROMPTS, max_new_tokens=8)
    assert free.finish_reasons == ["length"] * 3 and free.decode_steps == 7
    stop = free.tokens[0][2]
    model.stop_tokens = frozenset([stop])
    seen = []
    stopped = model.generate_tokens(PROMPTS, max_new_tokens=8, on_tokens=seen.append)
    for tokens, all_tokens, reason in zip(
        stopped.tokens, free.tokens, stopped.finish_reasons, strict=True
    ):
        end = all_tokens.index(stop) if stop in all_tokens else len(all_tokens)
        assert tokens == all_tokens[:end]
        assert reason == ("stop" if stop in all_tokens else "length")
    assert [step[0] for step in seen][:3] == [*free.tokens[0][: len(stopped.tokens[0])], None][:3]


def test_generation_stops_at_the_context_length(exported):
    _, directory, _ = exported("llama", cache="static")
    model = CausalLM(directory, providers=["CPUExecutionProvider"])
    model.stop_tokens = frozenset()
    assert len(model.generate_tokens([[1] * 120], max_new_tokens=50).tokens[0]) == 8
    with pytest.raises(ArgumentError, match="than the 128 of the model's context, got 128"):
        model.generate_tokens([[1] * 128])


@pytest.mark.parametrize("rows", [[], [[]], [[1], []]])
def test_empty_prompts(exported, rows):
    _, directory, _ = exported("llama", cache="static")
    model = CausalLM(directory, providers=["CPUExecutionProvider"])
    with pytest.raises(ArgumentError, match="expected at least one token in every prompt"):
        model.generate_tokens(rows)


@pytest.mark.parametrize("count", [0, -1, 2.5, 5.0, np.float32(5), True, None, "3"])
def test_max_new_tokens_is_a_whole_number(exported, count):
    _, directory, _ = exported("llama", cache="static")
    model = CausalLM(directory, providers=["CPUExecutionProvider"])
    with pytest.raises(ArgumentError, match=f"a whole number from 1, got {re.escape(repr(count))}"):
        model.generate_tokens([[1]], max_new_tokens=count)


def test_numbers_may_be_those_of_numpy(exported):
    _, directory, _ = exported("llama", cache="static")
    model = CausalLM(directory, providers=["CPUExecutionProvider"])
    for count in (np.int64(3), np.uint8(3)):
        sampler = Sampler(np.float32(1), top_k=np.int32(1), seed=np.int64(2))
        made = model.generate_tokens([[1]], max_new_tokens=count, sampler=sampler)
        assert made.tokens == model.generate_tokens([[1]], max_new_tokens=3).tokens


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_prompts_must_be_rows_of_vocabulary_tokens(exported, cache):
    _, directory, _ = exported("llama", cache=cache)
    model = CausalLM(directory)
    expected = model.generate_tokens([[1, 2], [3, 4]], max_new_tokens=4).tokens
    for token in (-1, model.session.get_outputs()[0].shape[-1], 2**40, 2**64):
        with pytest.raises(ArgumentError, match=rf"expected tokens from 0 to \d+, got {token}"):
            model.generate_tokens([[1, token]], max_new_tokens=2)
    for rows in ([1, 2], [[1.5]], ["ab"]):
        with pytest.raises(ArgumentError, match="expected prompts as rows of token ids"):
            model.generate_tokens(rows, max_new_tokens=2)
    rows = np.array([[1, 2], [3, 4]], np.int32)
    assert model.generate_tokens(rows, max_new_tokens=4).tokens == expected


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_custom_sampler_is_checked(exported, cache):
    _, directory, _ = exported("llama", cache=cache)
    model = CausalLM(directory)
    expected = model.generate_tokens([[1, 2], [3, 4]], max_new_tokens=4).tokens

    def tokens(sampler):
        return model.generate_tokens([[1, 2], [3, 4]], max_new_tokens=4, sampler=sampler).tokens

    for dtype in (np.int32, np.uint16):
        assert tokens(lambda logits, t=dtype: logits.argmax(-1).astype(t)) == expected
    for chosen, got in (
        ([1], r"int64 of shape \[1\]"),
        ([[1], [2]], r"int64 of shape \[2, 1\]"),
        ([1.0, 2.0], r"float64 of shape \[2\]"),
        (None, r"object of shape \[\]"),
        ([1, -5], r"\[1, -5\]"),
        ([10**6, 1], r"\[1000000, 1\]"),
    ):
        with pytest.raises(ArgumentError, match=rf"expected the sampler to return .* {got}"):
            tokens(lambda logits, c=chosen: c)
    with pytest.raises(ArgumentError, match="expected a Sampler or a function, got int"):
        tokens(5)
    assert model.generate_tokens([[1, 2], [3, 4]], max_new_tokens=4).tokens == expected


def test_graphs_with_a_growing_cache_are_refused(exported):
    _, directory, _ = exported("llama", cache="dynamic")
    with pytest.raises(ArgumentError, match="enable_npu_graph expected a static cache"):
        CausalLM(directory, providers=graph_option("1"))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_another_device(exported, run_python, cache):
    _, directory, _ = exported("llama", cache=cache)
    code = f"""
from onnxruntime_npu import npu
from onnxruntime_npu.generation import CausalLM
from onnxruntime_npu.sampling import Sampler
for settings in ({{}}, {{"temperature": 1.0, "seed": 1}}):
    first, second = (
        CausalLM({str(directory)!r}, providers=[("NPUExecutionProvider", {{"device_id": i}})])
        .generate_tokens([[1, 2, 3], [4]], max_new_tokens=4, sampler=Sampler(**settings)).tokens
        for i in range(2)
    )
    assert first == second, (first, second)
assert npu.max_memory_allocated(1) > 0
"""
    code, output = run_python(code, ORT_NPU_DEVICE_COUNT="2")
    assert code == 0, output


def test_text_requires_a_tokenizer(exported):
    _, directory, _ = exported("llama", cache="static")
    with pytest.raises(ArgumentError, match="holds no tokenizer"):
        CausalLM(directory, providers=["CPUExecutionProvider"]).generate("hello")


def test_unavailable_provider_is_an_error(exported):
    _, directory, _ = exported("llama", cache="static")
    with pytest.raises(ArgumentError, match="provider 'TPUExecutionProvider' is not available"):
        CausalLM(directory, providers=["TPUExecutionProvider"])


def test_directory_without_model_is_an_error(tmp_path):
    with pytest.raises(ArgumentError, match=r"holds no model.onnx: export a model to it first"):
        CausalLM(tmp_path)
