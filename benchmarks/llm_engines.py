"""The engines that the language-model benchmark compares, all with the same interface.

``logits`` returns the values compared before timing; ``prefill`` and ``decode`` return seconds.
Every engine stores its cache at the precision of its weights, computes logits for the last token
only, copies them to the host and takes the argmax there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

# ONNX element types by their names in sessions.
ELEMENTS = {"tensor(float)": 1, "tensor(float16)": 10, "tensor(bfloat16)": 16}
# Of a cache, by the type of the weights.
GGML_TYPES = {"float32": 0, "float16": 1, "bfloat16": 30, "int8": 1, "int4": 1}


def prompt(length: int, vocabulary: int, rows: int = 1) -> np.ndarray:
    """A fixed pseudo-random prompt, [rows, length] int64, the same for every engine."""
    row = np.random.default_rng(0).integers(5, vocabulary, (1, length), dtype=np.int64)
    return np.repeat(row, rows, 0)


def inputs_of_step(ids: np.ndarray, past: int, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Those of a step without padding that have these names.

    ids: [rows, n] int64, after `past` cached tokens. The step is timed: nothing else is made.
    """
    rows, new = ids.shape
    total = past + new
    makers = {
        "input_ids": lambda: np.ascontiguousarray(ids),
        "attention_mask": lambda: np.ones((rows, total), np.int64),
        "position_ids": lambda: np.arange(past, total, dtype=np.int64)[None].repeat(rows, 0),
        "sequence_lengths": lambda: np.full(rows, new, np.int64),
        "total_lengths": lambda: np.full(rows, total, np.int64),
    }
    return {name: makers[name]() for name in names if name in makers}


class LanguageModel:
    """Timing over `reset`, `step` and `rewind`, which an engine implements."""

    vocabulary: int

    def __init__(self) -> None:
        self._cached: tuple[int, int] | None = None  # rows and tokens of the prompt in the cache

    def reset(self, rows: int) -> None:
        """Empty the cache, for `rows` rows."""
        raise NotImplementedError

    def step(self, ids: np.ndarray, past: int) -> np.ndarray:
        """Append ids [rows, n] after `past` cached tokens; float32 logits [rows, V] of the last."""
        raise NotImplementedError

    def rewind(self, past: int) -> None:
        """Drop the tokens after the first `past` ones."""
        raise NotImplementedError

    def logits(self, length: int, steps: int) -> np.ndarray:
        """Logits [steps + 1, V] after the prompt and after each of `steps` given tokens."""
        ids = prompt(length + steps, self.vocabulary)
        self.reset(1)
        self._cached = None
        # Copies, since an engine may reuse its buffer.
        rows = [self.step(ids[:, :length], 0)[0].copy()]
        rows += [self.step(ids[:, i : i + 1], i)[0].copy() for i in range(length, length + steps)]
        return np.stack(rows)

    def prefill(self, length: int, rows: int = 1) -> float:
        """Seconds from a prompt to the logits of its last token."""
        ids = prompt(length, self.vocabulary, rows)
        self.reset(rows)
        self._cached = None
        start = time.perf_counter()
        self.step(ids, 0).argmax(-1)
        return time.perf_counter() - start

    def decode(self, past: int, steps: int, rows: int = 1) -> float:
        """Seconds for `steps` greedy tokens per row after `past` cached ones."""
        if self._cached != (rows, past):
            self.reset(rows)
            self.step(prompt(past, self.vocabulary, rows), 0)
            self._cached = (rows, past)
        else:
            self.rewind(past)
        tokens = np.full(rows, 7, np.int64)
        start = time.perf_counter()
        for done in range(steps):
            tokens = self.step(tokens[:, None], past + done).argmax(-1).astype(np.int64)
        return time.perf_counter() - start


def session_options(threads: int) -> Any:
    """Session options with this number of threads; only errors are logged."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return options


class NpuModel(LanguageModel):
    """Our model on the NPU, with the steps of CausalLM."""

    def __init__(self, directory: str, threads: int, capacity: int) -> None:
        super().__init__()
        from onnxruntime_npu.generation import adapters
        from onnxruntime_npu.generation.decoding import StepModel
        from onnxruntime_npu.sampling import Chooser, Sampler

        options = session_options(threads)
        path = str(Path(directory) / "model.onnx")
        self.model = StepModel(path, options, ["NPUExecutionProvider"], static=True)
        if not self.model.graphs:
            raise RuntimeError("expected a session that captures graphs")
        config = json.loads((Path(directory) / "config.json").read_text())
        self.vocabulary = config["vocab_size"]
        self.chooser, self.capacity, self.rows = Chooser(Sampler()), capacity, 0
        self.adapter = adapters.NONE

    def reset(self, rows: int) -> None:
        if rows != self.rows:  # cache content beyond a row's length is never read
            self.rows, self.steps = rows, self.model.take_steps(rows, self.capacity, self.adapter)

    def rewind(self, past: int) -> None:
        """Do nothing: the next step passes the number of tokens."""

    def step(self, ids: np.ndarray, past: int) -> np.ndarray:
        rows, new = ids.shape
        lengths, totals = np.full(rows, new, np.int64), np.full(rows, past + new, np.int64)
        logits = self.steps.step(np.ascontiguousarray(ids), lengths, totals)
        return self.chooser.to_host(logits)[:, -1]


class OrtModel(LanguageModel):
    """A session on the CPUExecutionProvider, its cache updated in place through IOBinding."""

    def __init__(self, directory: str, checkpoint: str, threads: int, capacity: int) -> None:
        super().__init__()
        import onnxruntime as ort

        self.ort = ort
        options = session_options(threads)
        path = str(Path(directory) / "model.onnx")
        self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        inputs = self.session.get_inputs()
        self.past = [i for i in inputs if i.name.startswith("past_key_values.")]
        self.others = [i.name for i in inputs if i not in self.past]
        # Some of these sizes are dynamic.
        config = json.loads((Path(checkpoint) / "config.json").read_text())
        self.vocabulary = config["vocab_size"]
        size = config["hidden_size"] // config["num_attention_heads"]
        self.cache_shape = [config["num_key_value_heads"], capacity, size]
        self.rows = 0

    def reset(self, rows: int) -> None:
        if rows == self.rows:
            return  # cache content beyond a row's length is never read
        make = self.ort.OrtValue.ortvalue_from_shape_and_type
        self.rows = rows
        # Bound once: a step rebinds only what changes.
        self.binding = self.session.io_binding()
        for value in self.past:
            shape, element = [rows, *self.cache_shape], ELEMENTS[value.type]
            cache = make(shape, element, "cpu", 0)
            self.binding.bind_ortvalue_input(value.name, cache)
            present = value.name.replace("past_key_values.", "present.")
            self.binding.bind_ortvalue_output(present, cache)
        logits = next(o for o in self.session.get_outputs() if o.name == "logits")
        self.logits = make([rows, 1, self.vocabulary], ELEMENTS[logits.type], "cpu", 0)
        self.binding.bind_ortvalue_output("logits", self.logits)

    def rewind(self, past: int) -> None:
        """Do nothing: the next step passes the number of tokens."""

    def step(self, ids: np.ndarray, past: int) -> np.ndarray:
        for name, array in inputs_of_step(ids, past, self.others).items():
            self.binding.bind_cpu_input(name, array)
        self.session.run_with_iobinding(self.binding)
        return self.logits.numpy()[:, -1].astype(np.float32, copy=False)


class TorchModel(LanguageModel):
    """transformers' own model, eager, with its dynamic cache."""

    def __init__(self, directory: str, dtype: str, threads: int) -> None:
        super().__init__()
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self.torch = torch
        kind = getattr(torch, dtype)
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=kind).eval()
        self.vocabulary = self.model.config.vocab_size

    def reset(self, rows: int) -> None:
        from transformers import DynamicCache

        self.cache = DynamicCache(config=self.model.config)

    def rewind(self, past: int) -> None:
        self.cache.crop(past - self.cache.get_seq_length())

    def step(self, ids: np.ndarray, past: int) -> np.ndarray:
        with self.torch.inference_mode():
            out = self.model(
                input_ids=self.torch.from_numpy(ids),
                past_key_values=self.cache,
                use_cache=True,
                logits_to_keep=1,
            )
            return out.logits[:, -1].float().numpy()


class GenaiModel(LanguageModel):
    """onnxruntime-genai's own loop, with one buffer for past and present."""

    def __init__(self, directory: str, threads: int, capacity: int) -> None:
        super().__init__()
        import onnxruntime_genai as genai

        self.genai, self.capacity = genai, capacity
        config = genai.Config(directory)
        # It uses one thread by default.
        options = {"session_options": {"intra_op_num_threads": threads}}
        config.overlay(json.dumps({"model": {"decoder": options}}))
        self.model = genai.Model(config)
        described = json.loads((Path(directory) / "genai_config.json").read_text())
        self.vocabulary = described["model"]["vocab_size"]

    def reset(self, rows: int) -> None:
        params = self.genai.GeneratorParams(self.model)
        params.set_search_options(
            max_length=self.capacity, batch_size=rows, past_present_share_buffer=True
        )
        self.generator = self.genai.Generator(self.model, params)

    def rewind(self, past: int) -> None:
        self.generator.rewind_to(past)

    def step(self, ids: np.ndarray, past: int) -> np.ndarray:
        self.generator.append_tokens(ids.astype(np.int32))
        return np.asarray(self.generator.get_logits(), np.float32)[:, -1]


class OpenVinoModel(LanguageModel):
    """A stateful graph on OpenVINO's CPU plugin, cache and activations at this precision.

    Beside integer weights it quantises activations to int8, as it does by default.
    """

    def __init__(self, directory: str, dtype: str, threads: int) -> None:
        super().__init__()
        import openvino

        kind = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}.get(dtype)
        quantises = kind is None
        compiled = openvino.Core().compile_model(
            str(Path(directory) / "model.xml"),
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": kind or "f32",
                "KV_CACHE_PRECISION": kind or "f16",  # by default 8 bits
                "DYNAMIC_QUANTIZATION_GROUP_SIZE": 32 if quantises else 0,
                "INFERENCE_NUM_THREADS": threads,
                "PERFORMANCE_HINT": "LATENCY",
            },
        )
        self.openvino = openvino
        self.request = compiled.create_infer_request()
        self.vocabulary = compiled.output("logits").get_partial_shape()[2].get_length()

    def reset(self, rows: int) -> None:
        self.request.reset_state()

    def rewind(self, past: int) -> None:
        for state in self.request.query_state():
            whole = state.state.data
            state.state = self.openvino.Tensor(np.ascontiguousarray(whole[:, :, :past]))

    def step(self, ids: np.ndarray, past: int) -> np.ndarray:
        rows, new = ids.shape
        positions = np.arange(past, past + new, dtype=np.int64)[None].repeat(rows, 0)
        beams = np.arange(rows, dtype=np.int32)
        feeds = {"input_ids": ids, "position_ids": positions, "beam_idx": beams}
        return np.asarray(self.request.infer(feeds)["logits"], np.float32)[:, -1]


class OpenVinoFile(LanguageModel):
    """An ONNX file whose cache grows, read by OpenVINO as it is, on its CPU plugin in float32.

    Requests take turns, so that the outputs of one are inputs of the next without a copy; the one
    of the prompt keeps its outputs.
    """

    def __init__(self, path: str, cache: tuple[int, ...], threads: int) -> None:
        super().__init__()
        import openvino

        options = {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        compiled = openvino.Core().compile_model(path, "CPU", options)
        self.openvino, self.cache = openvino, cache
        self.prompt, *self.turns = (compiled.create_infer_request() for _ in range(3))
        self.names = [port.any_name for port in compiled.inputs]
        self.caches = [name for name in self.names if "past" in name]
        self.vocabulary = compiled.outputs[0].get_partial_shape()[2].get_length()

    def reset(self, rows: int) -> None:
        empty = self.openvino.Tensor(np.zeros((rows, *self.cache), np.float32))
        self.past = [empty for _ in self.caches]
        self.kept: dict[int, list[Any]] = {}

    def rewind(self, past: int) -> None:
        self.past = self.kept[past]

    def step(self, ids: np.ndarray, past: int) -> np.ndarray:
        # Decoding steps after the prompt, whose cache is needed again.
        self.kept[past] = self.past
        request = self.turns[past % 2] if past else self.prompt
        given = dict(zip(self.caches, self.past, strict=True))
        given |= inputs_of_step(ids, past, self.names)
        request.infer(given, share_inputs=True, share_outputs=True)
        logits, *self.past = request.output_tensors
        return np.asarray(logits.data[:, -1], np.float32)


class LlamaCppModel(LanguageModel):
    """llama.cpp through its C interface."""

    def __init__(self, directory: str, dtype: str, threads: int, capacity: int) -> None:
        super().__init__()
        import ctypes

        from llama_cpp import llama_cpp as api

        self.api = api
        self.log = api.llama_log_callback(lambda *_: None)
        api.llama_log_set(self.log, ctypes.c_void_p(0))
        api.llama_backend_init()
        path = str(Path(directory) / "model.gguf").encode()
        self.model = api.llama_model_load_from_file(path, api.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path.decode()}")
        params = api.llama_context_default_params()
        params.n_ctx = params.n_batch = capacity
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = GGML_TYPES[dtype]
        if dtype == "float32":
            params.flash_attn_type = 0  # logits differ by 2e-3 if fused, by 2e-6 if not
        self.context = api.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("llama.cpp cannot make a context")
        self.vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        # Some builds end the process in their first product of integers in tile registers: a peer
        # that does not start is left out with the reason, one that dies later ends the benchmark.
        self.step(np.zeros((1, 64), np.int64), 0)

    def reset(self, rows: int) -> None:
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def rewind(self, past: int) -> None:
        memory = self.api.llama_get_memory(self.context)
        if not self.api.llama_memory_seq_rm(memory, 0, past, -1):
            raise RuntimeError("llama.cpp cannot rewind its cache")

    def step(self, ids: np.ndarray, past: int) -> np.ndarray:
        tokens = np.ascontiguousarray(ids[0], np.int32)
        pointer = tokens.ctypes.data_as(self.api.llama_token_p)
        batch = self.api.llama_batch_get_one(pointer, len(tokens))
        if status := self.api.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode gives {status}")
        logits = self.api.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(logits, (1, self.vocabulary))
