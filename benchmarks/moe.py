#!/usr/bin/env python3
"""Layers of 8 experts, 2 for each token, against onnxruntime's MoE and QMoE and a loop in torch.

Every sample sends one batch of tokens through enough layers to exceed the caches, each with its
own routing, in one session. Ours: gating, routing, two grouped matmuls with SwiGLU between them,
and the sum of a token's experts. Peers: com.microsoft MoE (float32) and QMoE (blocks of 128; with
4 bits both accuracy levels) of the CPUExecutionProvider, and torch's loop over experts as
transformers has it. "int8" of ours quantises activations, a scale per token.
Results are compared with float64 before anything is timed.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import harness
import numpy as np
from quantized_weights import nibbles, words

HIDDEN, INNER, EXPERTS, SLOTS = 1024, 2816, 8, 2
TOKENS = [1, 16, 128, 512]
GROUP = 128
BITS = {"float32": 32, "bfloat16": 16, "w8": 8, "w4": 4}
# One token reads a quarter of the weights: these exceed the caches then, too.
WEIGHT_BYTES = 512 << 20
SEED = 0
# Float32 sums; activations rounded to bfloat16, or to int8 per token or block, in both layers: the
# largest of a token's values after SwiGLU is ten and more times as large as most of them.
TOLERANCES = {"float32": 1e-5, "bfloat16": 1.5e-2, "w8": 5e-2, "w4": 5e-2}


def layers_of(scheme: str) -> int:
    """The number of layers whose weights exceed the caches."""
    bytes_each = 3 * EXPERTS * HIDDEN * INNER * BITS[scheme] // 8
    return max(2, round(WEIGHT_BYTES / bytes_each))


def tokens_of(count: int) -> np.ndarray:
    """Activations [count, HIDDEN] in float32, of values that bfloat16 has."""
    integers = np.random.default_rng(SEED + 1).integers(-64, 65, (count, HIDDEN))
    return (integers / 32).astype(np.float32)


def logits_of(layer: int, count: int) -> np.ndarray:
    """The router's results [count, EXPERTS] in float32: no two of a token are near each other."""
    order = np.random.default_rng([SEED, layer]).random((count, EXPERTS)).argsort(1)
    return (order / 2).astype(np.float32)


def weights_of(scheme: str, layer: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Up [E, H, 2 I], its scales [E, groups, 2 I], down [E, I, H] and its scales.

    Floats have scales of 1; integers are int8, groups of 4 bits have GROUP rows.
    """
    numbers = np.random.default_rng([SEED + 2, layer])
    result = []
    for k, n in ((HIDDEN, 2 * INNER), (INNER, HIDDEN)):
        if scheme in ("w8", "w4"):
            most = 2 ** (BITS[scheme] - 1)
            values = numbers.integers(-most, most, (EXPERTS, k, n), np.int8)
            groups = k // GROUP if scheme == "w4" else 1
            scales = numbers.integers(16, 32, (EXPERTS, groups, n)).astype(np.float32)
            scales /= 1024 * most  # of values that bfloat16 has
        else:
            values = numbers.standard_normal((EXPERTS, k, n), np.float32) / np.float32(k**0.5)
            scales = np.ones((EXPERTS, 1, n), np.float32)
            if scheme == "bfloat16":
                import ml_dtypes

                values = values.astype(ml_dtypes.bfloat16).astype(np.float32)
        result += [values, scales]
    up, up_scales, down, down_scales = result
    return up, up_scales, down, down_scales


def exact(scheme: str, layer: int, count: int) -> np.ndarray:
    """The layer's result [count, HIDDEN] in float64."""
    up, up_scales, down, down_scales = weights_of(scheme, layer)
    x, logits = tokens_of(count).astype(np.float64), logits_of(layer, count).astype(np.float64)
    chosen = (logits[:, :, None] < logits[:, None, :]).sum(2) < SLOTS
    shares = np.exp(logits) * chosen
    shares /= shares.sum(1, keepdims=True)
    y = np.zeros((count, HIDDEN))
    for expert in range(EXPERTS):
        rows = np.flatnonzero(chosen[:, expert])
        if len(rows) == 0:
            continue
        first, second = (
            w[expert].astype(np.float64) * np.repeat(s[expert], w.shape[1] // s.shape[1], 0)
            for w, s in ((up, up_scales), (down, down_scales))
        )
        gate, value = np.split(x[rows] @ first, 2, axis=1)
        hidden = gate / (1 + np.exp(-gate)) * value
        y[rows] += shares[rows, expert, None] * (hidden @ second)
    return y


class Layers:
    """Layers of one scheme; `time(count)` returns the seconds of one pass over all of them."""

    def __init__(self, scheme: str) -> None:
        self.scheme, self.layers = scheme, layers_of(scheme)
        self.count = 0

    def bind(self, count: int) -> None:
        """Prepare calls with this number of tokens."""
        raise NotImplementedError

    def once(self) -> None:
        """Send the tokens through every layer, and wait."""
        raise NotImplementedError

    def last(self) -> np.ndarray:
        """The result of the last layer, in float32."""
        raise NotImplementedError

    def error(self, count: int) -> np.ndarray:
        """The relative error of the last layer against float64."""
        self.time(count)
        expected = exact(self.scheme, self.layers - 1, count)
        difference = np.linalg.norm(self.last() - expected) / np.linalg.norm(expected)
        return np.array([difference], np.float32)

    def time(self, count: int) -> float:
        """Seconds of one pass; the first one of a batch size is not counted."""
        if self.count != count:
            self.count = count
            self.bind(count)
            self.once()
        begin = time.perf_counter()
        self.once()
        return time.perf_counter() - begin


class Session(Layers):
    """A session of one provider; `kind` selects the operators."""

    def __init__(self, scheme: str, provider: str, kind: str, threads: int) -> None:
        from onnx import helper, numpy_helper
        from sessions import numpy_dtype, session_of

        super().__init__(scheme)
        self.kind = kind
        self.device = "cpu" if provider == "CPUExecutionProvider" else "npu"
        floats = "float32" if self.device == "cpu" or scheme == "float32" else "bfloat16"
        self.numpy_type = numpy_dtype(floats)
        self.element = helper.np_dtype_to_tensor_dtype(self.numpy_type)
        nodes, constants = [], {}
        make = self._npu if self.device == "npu" else self._ort
        for layer in range(self.layers):
            more, tensors = make(str(layer), weights_of(scheme, layer))
            nodes += more
            constants.update(tensors)

        def info(name: str, columns: int) -> Any:
            return helper.make_tensor_value_info(name, self.element, ["tokens", columns])

        numbers = range(self.layers)
        graph = helper.make_graph(
            nodes,
            "experts",
            [info("x", HIDDEN), *(info(f"logits_{i}", EXPERTS) for i in numbers)],
            [info(f"y_{i}", HIDDEN) for i in numbers],
            [numpy_helper.from_array(value, name) for name, value in constants.items()],
        )
        options = {"enable_npu_graph": "1"} if self.device == "npu" else {}
        self.session = session_of(graph, provider, threads, options)
        self.bindings = 0

    def _npu(self, i: str, weights: Any) -> Any:
        from onnx import helper

        def node(
            op_type: str, inputs: str, outputs: str, domain: str = "npu", **attributes: Any
        ) -> Any:
            names = [[n + i if n.endswith("_") else n for n in s.split(",")] for s in
                     (inputs, outputs)]  # fmt: skip
            return helper.make_node(op_type, *names, domain=domain, **attributes)

        up, up_scales, down, down_scales = weights
        grouped = {"group_type": 0, "group_list_type": 1}
        nodes = [
            node("NPUMoeGatingTopKSoftmax", "logits_", "part_,expert_,source_", k=SLOTS),
            node("ReduceSum", "part_,axis_", "sum_", domain=""),
            node("Div", "part_,sum_", "share_", domain=""),
            node(
                "NPUMoeInitRoutingV2", "x,expert_", "rows_,places_,counts_,none_",
                expert_num=EXPERTS, expert_tokens_num_type=1, expert_tokens_num_flag=1,
            ),
        ]  # fmt: skip
        tensors = {"u_": up, "d_": down}
        if self.scheme in ("float32", "bfloat16"):
            tensors = {name: value.astype(self.numpy_type) for name, value in tensors.items()}
            nodes += [
                node("NPUGroupedMatmul", "rows_,u_,,,,,,counts_", "h_", **grouped),
                node("NPUSwiGlu", "h_", "a_", dim=-1),
                node("NPUGroupedMatmul", "a_,d_,,,,,,counts_", "z_", **grouped),
            ]
        elif self.kind == "floats":
            tensors |= {"us_": up_scales.astype(self.numpy_type)}
            tensors |= {"ds_": down_scales.astype(self.numpy_type)}
            nodes += [
                node("NPUGroupedMatmul", "rows_,u_,,,us_,,,counts_", "h_", **grouped),
                node("NPUSwiGlu", "h_", "a_", dim=-1),
                node("NPUGroupedMatmul", "a_,d_,,,ds_,,,counts_", "z_", **grouped),
            ]
        else:
            bfloat16 = {"output_dtype": 27}
            tensors |= {"us_": up_scales, "ds_": down_scales}
            bias = ""
            if self.scheme == "w4":
                bias = "b_"
                for name, w, s in (("ub_", up, up_scales), ("db_", down, down_scales)):
                    tensors[name] = (8 * w.astype(np.float32) * np.repeat(s, GROUP, 1)).sum(1)
            ub, db = (f"{letter}{bias}" if bias else "" for letter in "ud")
            nodes += [
                node("NPUDynamicQuant", "rows_", "q_,t_"),
                node(
                    "NPUGroupedMatmul", f"q_,u_,{ub},us_,,,t_,counts_", "h_", **grouped, **bfloat16
                ),
                node(
                    "NPUDequantSwigluQuant", "h_", "a_,s_", activate_left=1, quant_mode=1
                ),
                node(
                    "NPUGroupedMatmul", f"a_,d_,{db},ds_,,,s_,counts_", "z_", **grouped, **bfloat16
                ),
            ]  # fmt: skip
        if self.scheme == "w4":
            tensors |= {"u_": words(up), "d_": words(down)}
        if self.scheme == "w8":
            tensors |= {"us_": tensors["us_"][:, 0], "ds_": tensors["ds_"][:, 0]}
        nodes.append(
            node(
                "NPUMoeFinalizeRouting", "z_,,,,share_,places_", "y_", drop_pad_mode=2
            )
        )  # fmt: skip
        tensors["axis_"] = np.array([-1], np.int64)
        return nodes, {name + i: value for name, value in tensors.items()}

    def _ort(self, i: str, weights: Any) -> Any:
        from onnx import helper

        up, up_scales, down, down_scales = weights
        # SwiGLU takes gates and values in turns.
        turns = np.arange(2 * INNER).reshape(2, INNER).T.reshape(-1)
        attributes: dict[str, Any] = {
            "k": SLOTS, "activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.0,
            "activation_beta": 0.0, "normalize_routing_weights": 1,
        }  # fmt: skip
        up, up_scales = up[:, :, turns], up_scales[:, :, turns]
        first, second = (np.ascontiguousarray(w.transpose(0, 2, 1)) for w in (up, down))
        names = ["x", f"logits_{i}", f"u_{i}", "", f"d_{i}"]
        if self.scheme == "float32":
            node = helper.make_node("MoE", names, [f"y_{i}"], domain="com.microsoft", **attributes)
            return [node], {f"u_{i}": first, f"d_{i}": second}
        bits = BITS[self.scheme]
        tensors = {}
        for name, values, scales in (("u", first, up_scales), ("d", second, down_scales)):
            unsigned = (values.astype(np.int16) + 2 ** (bits - 1)).astype(np.uint8)
            if bits == 4:
                unsigned = nibbles(unsigned)
            tensors[f"{name}_{i}"] = unsigned
            blocks = values.shape[2] // GROUP
            of_blocks = np.broadcast_to(scales, (EXPERTS, blocks, scales.shape[2]))
            tensors[f"{name}s_{i}"] = np.ascontiguousarray(of_blocks.transpose(0, 2, 1))
        node = helper.make_node(
            "QMoE", ["x", f"logits_{i}", f"u_{i}", f"us_{i}", "", f"d_{i}", f"ds_{i}"],
            [f"y_{i}"], domain="com.microsoft", expert_weight_bits=bits, block_size=GROUP,
            accuracy_level=int(self.kind), weights_prepacked=0, **attributes,
        )  # fmt: skip
        return [node], tensors

    def bind(self, count: int) -> None:
        import onnxruntime as ort
        from onnxruntime_npu import ortvalue_from_numpy

        self.bindings += 1
        self.binding = self.session.io_binding()
        of_numpy = ortvalue_from_numpy
        if self.device == "cpu":
            of_numpy = ort.OrtValue.ortvalue_from_numpy
        feeds = {"x": tokens_of(count)}
        feeds |= {f"logits_{i}": logits_of(i, count) for i in range(self.layers)}
        for name, value in feeds.items():
            self.binding.bind_ortvalue_input(name, of_numpy(value.astype(self.numpy_type)))
        make = ort.OrtValue.ortvalue_from_shape_and_type
        for i in range(self.layers):
            y = make([count, HIDDEN], self.element, self.device)
            self.binding.bind_ortvalue_output(f"y_{i}", y)
        self.run_options = ort.RunOptions()
        if self.device == "npu":  # a graph per binding, whose outputs it writes
            self.run_options.add_run_config_entry("gpu_graph_id", str(self.bindings))

    def once(self) -> None:
        self.session.run_with_iobinding(self.binding, self.run_options)
        self.binding.synchronize_outputs()

    def last(self) -> np.ndarray:
        from onnxruntime_npu import ortvalue_to_numpy

        return ortvalue_to_numpy(self.binding.get_outputs()[-1]).astype(np.float32)


class TorchLoop(Layers):
    """A loop over the experts that a batch has, as transformers' experts run eagerly."""

    def __init__(self, scheme: str, threads: int) -> None:
        import torch

        super().__init__(scheme)
        torch.set_num_threads(threads)
        self.type = getattr(torch, scheme)
        self.weights = []
        for layer in range(self.layers):
            up, _, down, _ = weights_of(scheme, layer)
            pair = (torch.from_numpy(w).to(self.type).mT.contiguous() for w in (up, down))
            self.weights.append(tuple(pair))

    def bind(self, count: int) -> None:
        import torch

        self.x = torch.from_numpy(tokens_of(count)).to(self.type)
        self.logits = [torch.from_numpy(logits_of(i, count)) for i in range(self.layers)]

    def once(self) -> None:
        import torch
        import torch.nn.functional as F

        with torch.inference_mode():
            for (up, down), logits in zip(self.weights, self.logits, strict=True):
                shares, chosen = logits.softmax(-1).topk(SLOTS)
                shares /= shares.sum(-1, keepdim=True)
                y = torch.zeros_like(self.x)
                for expert in chosen.unique().tolist():
                    rows, slots = torch.where(chosen == expert)
                    gate, value = F.linear(self.x[rows], up[expert]).chunk(2, -1)
                    out = F.linear(F.silu(gate) * value, down[expert])
                    y.index_add_(0, rows, out * shares[rows, slots, None].to(self.type))
                self.y = y

    def last(self) -> np.ndarray:
        return self.y.float().numpy()


def main() -> None:
    parser = harness.arguments_parser(__doc__ or "", list(BITS), rounds=5)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, help="tokens of a batch")
    arguments = harness.parse_arguments(parser)
    for scheme in arguments.dtypes:
        session = functools.partial(Session, scheme, threads=arguments.threads)
        ours = {"npu": "floats"}
        peers = {}
        if scheme in ("w8", "w4"):
            ours["npu-int8"] = "integers"
            peers = {"ort-qmoe": "4"} if scheme == "w8" else {"ort-qmoe": "0", "ort-qmoe-int8": "4"}
        elif scheme == "float32":
            peers = {"ort-moe": "floats"}
        specs = {
            name: harness.Spec(
                functools.partial(session, provider="NPUExecutionProvider", kind=kind), ours=True
            )
            for name, kind in ours.items()
        }
        for name, kind in peers.items():
            make = functools.partial(session, provider="CPUExecutionProvider", kind=kind)
            specs[name] = harness.Spec(make)
        if scheme in ("float32", "bfloat16"):
            make = functools.partial(TorchLoop, scheme, threads=arguments.threads)
            specs["torch-loop"] = harness.Spec(make)
        flops = 2 * SLOTS * 3 * HIDDEN * INNER
        cases = [
            harness.Case(
                f"{scheme} T={count}", 1e-9 * flops * count * layers_of(scheme), "GFLOP", "time",
                (count,),
            )
            for count in arguments.tokens
        ]  # fmt: skip
        check = functools.partial(
            harness.check_errors,
            tolerance=TOLERANCES[scheme],
            calls=[(count,) for count in arguments.tokens],
        )
        harness.measure(arguments, f"moe-{scheme}", specs, cases, check)


if __name__ == "__main__":
    main()
