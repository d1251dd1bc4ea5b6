"""/v1/embeddings against the model itself in transformers, by OpenAI's client."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest
import torch
from onnxruntime_npu.serving.served_directory import ServedEncoder

from .conftest import byte_tokenizer, tiny_encoder

TEXTS = ["a", "a longer text", "Grüße, 世界", "and one of " * 9]
# Of float32 sums in another order, over vectors of length 1.
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def expected():
    """The mean of the last hidden states of each text alone, of length 1."""
    tokenizer, model, vectors = byte_tokenizer(), tiny_encoder(), []
    for text in TEXTS:
        ids = torch.tensor([tokenizer.encode(text)])
        with torch.no_grad():
            hidden = model(ids).last_hidden_state[0].mean(0)
        vectors.append((hidden / hidden.norm()).numpy())
    return np.stack(vectors)


def embed(server, given, **options):
    return server.client.embeddings.create(model="tiny-encoder", input=given, **options)


def vectors_of(answer):
    return np.array([each.embedding for each in answer.data], np.float32)


def test_a_batch_is_equal_to_each_text_alone(server, expected):
    together = embed(server, TEXTS)
    assert [each.index for each in together.data] == [0, 1, 2, 3]
    np.testing.assert_allclose(vectors_of(together), expected, rtol=0, atol=TOLERANCE)
    count = sum(len(text.encode()) for text in TEXTS)
    assert together.usage.prompt_tokens == together.usage.total_tokens == count
    alone = np.concatenate([vectors_of(embed(server, text)) for text in TEXTS])
    np.testing.assert_allclose(alone, expected, rtol=0, atol=TOLERANCE)


def test_tokens_and_both_formats_are_the_same(server, expected):
    tokens = [byte_tokenizer().encode(text) for text in TEXTS]
    for given in (tokens, tokens[:1], tokens[0]):
        vectors = vectors_of(embed(server, given, encoding_format="float"))
        np.testing.assert_allclose(vectors, expected[: len(vectors)], rtol=0, atol=TOLERANCE)
    body = {"input": TEXTS, "encoding_format": "base64"}
    answer = server.http.post("/v1/embeddings", json=body).json()
    decoded = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in answer["data"]]
    np.testing.assert_allclose(np.stack(decoded), expected, rtol=0, atol=TOLERANCE)


def test_fewer_dimensions_keep_the_length(server, expected):
    short = vectors_of(embed(server, TEXTS, dimensions=16))
    kept = expected[:, :16]
    kept = kept / np.linalg.norm(kept, axis=1, keepdims=True)
    np.testing.assert_allclose(short, kept, rtol=0, atol=5 * TOLERANCE)


def test_many_requests_at_once_get_their_own_vectors(server, expected):
    order = [i % 4 for i in range(64)]
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda i: embed(server, [TEXTS[i]] * (i + 1)), order))
    for i, answer in zip(order, answers, strict=True):
        vectors = vectors_of(answer)
        assert len(vectors) == i + 1
        np.testing.assert_allclose(
            vectors, np.tile(expected[i], (i + 1, 1)), rtol=0, atol=TOLERANCE
        )


@pytest.mark.parametrize(
    ("changes", "status", "code", "param"),
    [
        ({"model": "tiny"}, 404, "model_not_found", "model"),
        ({"model": "other"}, 404, "model_not_found", "model"),
        ({"input": []}, 400, "invalid_value", "input"),
        ({"input": ""}, 400, "invalid_value", "input"),
        ({"input": ["a", ""]}, 400, "invalid_value", "input"),
        ({"input": [[]]}, 400, "invalid_value", "input"),
        ({"input": ["a"] * 2049}, 400, "invalid_value", "input"),
        ({"input": "a" * 129}, 400, "context_length_exceeded", "input"),
        ({"input": [258]}, 400, "invalid_value", "input"),
        ({"input": [-1]}, 400, "invalid_value", "input"),
        ({"input": [0.5]}, 400, "invalid_value", "input"),
        ({"dimensions": 0}, 400, "invalid_value", "dimensions"),
        ({"dimensions": 65}, 400, "invalid_value", "dimensions"),
        ({"encoding_format": "text"}, 400, "invalid_value", "encoding_format"),
        ({"something": 1}, 400, "invalid_value", "something"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_wrong_requests(server, changes, status, code, param):
    answer = server.http.post("/v1/embeddings", json={"input": "a", **changes})
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param)


def test_context_is_that_of_the_report(tmp_path):
    """RoBERTa's configuration has the rows of a table, some of which are of no position."""
    byte_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 130}')
    for told, longest in (({"context_length": 128}, 128), ({}, 130)):  # earlier reports lack it
        report = {"pooling": "mean", **told}
        (tmp_path / "export_report.json").write_text(json.dumps(report))
        assert ServedEncoder(tmp_path, None).longest == longest


def test_an_encoder_writes_no_text(server):
    answer = server.http.post("/v1/completions", json={"prompt": "a", "model": "tiny-encoder"})
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"


def test_tokens_of_either_model_and_back(server):
    for model in ("tiny", "tiny-encoder"):
        body = {"model": model, "prompt": "Grüße<end>"}
        tokens = server.http.post("/tokenize", json=body).json()["tokens"]
        assert tokens[-1] == 257
        answer = server.http.post("/detokenize", json={"model": model, "tokens": tokens})
        assert answer.json() == {"prompt": "Grüße<end>"}
    for wrong in ([258], [-1], [2**70]):
        answer = server.http.post("/detokenize", json={"tokens": wrong})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "tokens"


def test_a_failed_encoder_is_started_again(server, expected):
    """What waits is answered 503; the language model goes on."""
    os.kill(server.encoder_process(), signal.SIGSTOP)
    statuses = []

    def ask():
        try:
            embed(server, TEXTS)
        except openai.APIStatusError as error:
            statuses.append((error.status_code, error.code))

    asking = threading.Thread(target=ask)
    asking.start()
    server.wait_for("npu_embedding_requests", 1)
    with pytest.raises(openai.APITimeoutError):  # a client that goes away
        server.client.with_options(timeout=0.3).embeddings.create(model="tiny-encoder", input="a")
    server.wait_for("npu_embedding_requests", 1)
    os.kill(server.encoder_process(), signal.SIGKILL)
    asking.join(120)
    assert statuses == [(503, "engine_failed")]
    completion = server.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
    assert completion.status_code == 200
    server.wait_until_ready()
    np.testing.assert_allclose(vectors_of(embed(server, TEXTS)), expected, rtol=0, atol=TOLERANCE)
