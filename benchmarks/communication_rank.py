"""One rank of benchmarks/communication.py: ``communication_rank.py FOLDER KIND DTYPE``.

It makes the calls that FOLDER's socket asks for.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_npu
import torch
import torch.distributed as dist
from onnx import helper

DEPTH, COLUMNS, EXPERTS = 1024, 1024, 4
RANK, SIZE = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])


@dataclass(frozen=True)
class Operator:
    """An operator's node: tensors of this rank, attributes, outputs, and how it is done apart."""

    op_type: str
    tensors: tuple[str, str]
    group_size: str  # the attribute of the number of ranks, if there is one
    outputs: int
    apart: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    has_experts: bool = False


def all_reduce(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    y = x @ weight
    dist.all_reduce(y)
    return y


def reduce_scatter(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    parts = x @ weight
    y = parts.new_empty(len(parts) // SIZE, COLUMNS)
    dist.reduce_scatter_tensor(y, parts)
    return y


def all_gather(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows = x.new_empty(len(x) * SIZE, DEPTH)
    dist.all_gather_into_tensor(rows, x)
    return rows @ weight


def by_expert(rows: torch.Tensor) -> torch.Tensor:
    """Rows that are ordered by rank and expert, ordered by expert and rank, or the other way."""
    return rows.unflatten(0, (SIZE, EXPERTS, -1)).transpose(0, 1).flatten(0, 2)


def by_rank(rows: torch.Tensor) -> torch.Tensor:
    return rows.unflatten(0, (EXPERTS, SIZE, -1)).transpose(0, 1).flatten(0, 2)


def exchanged(rows: torch.Tensor) -> torch.Tensor:
    received = torch.empty_like(rows)
    dist.all_to_all_single(received, rows)
    return received


def products(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.bmm(rows.unflatten(0, (EXPERTS, -1)), weight).flatten(0, 1)


def all_to_all_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return products(by_expert(exchanged(x)), weight)


def product_all_to_all(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return exchanged(by_rank(products(x, weight)))


OPERATORS = {
    "npu_mm_all_reduce_base": Operator("NPUMmAllReduceBase", ("x1", "x2"), "", 1, all_reduce),
    "npu_mm_reduce_scatter_base": Operator(
        "NPUMmReduceScatterBase", ("self", "x2"), "world_size", 1, reduce_scatter
    ),
    "npu_all_gather_base_mm": Operator(
        "NPUAllGatherBaseMm", ("self", "x2"), "world_size", 2, all_gather
    ),
    "npu_alltoallv_gmm": Operator(
        "NPUAlltoAllvGmm", ("gmm_x", "gmm_weight"), "ep_world_size", 3, all_to_all_product, True
    ),
    "npu_gmm_alltoallv": Operator(
        "NPUGmmAlltoAllv", ("gmm_x", "gmm_weight"), "ep_world_size", 2, product_all_to_all, True
    ),
}


class Rank:
    """The calls of one kind; tensors are kept between them."""

    def __init__(self, kind: str, dtype: str) -> None:
        self.make = {"fused": self.fused, "session": self.session, "apart": self.apart}[kind]
        self.dtype = dtype
        self.calls: dict[tuple[str, int], Callable[[], torch.Tensor | np.ndarray]] = {}
        group = dist.distributed_c10d._get_default_group()
        self.group = group._get_backend(torch.device("npu")).get_hccl_comm_name(RANK)

    def tensors(self, operator: Operator, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's rows and weights, of the values that every engine has."""
        generator = torch.Generator().manual_seed(RANK)
        experts = (EXPERTS,) if operator.has_experts else ()
        if operator.op_type == "NPUAllGatherBaseMm":
            rows //= SIZE  # of each rank: as many products as the other operators have
        x = torch.randn(rows, DEPTH, generator=generator)
        weight = torch.randn(*experts, DEPTH, COLUMNS, generator=generator) / DEPTH**0.5
        dtype = getattr(torch, self.dtype)
        return x.to(dtype), weight.to(dtype)

    def attributes(self, operator: Operator, rows: int, group: str) -> dict[str, Any]:
        found: dict[str, Any] = {"hcom": group}
        if operator.group_size:
            found[operator.group_size] = SIZE
        if operator.has_experts:
            counts = [rows // (SIZE * EXPERTS)] * (SIZE * EXPERTS)
            found |= {"send_counts": counts, "recv_counts": counts}
        return found

    def fused(self, name: str, operator: Operator, rows: int) -> Any:
        tensors = [tensor.npu() for tensor in self.tensors(operator, rows)]
        attributes = self.attributes(operator, rows, self.group)
        function = getattr(torch.ops.npu, name)

        def call() -> torch.Tensor:
            y = function(*tensors, **attributes)
            torch.npu.synchronize()
            return y[0] if isinstance(y, tuple) else y

        return call

    def apart(self, name: str, operator: Operator, rows: int) -> Any:
        tensors = [tensor.npu() for tensor in self.tensors(operator, rows)]

        def call() -> torch.Tensor:
            y = operator.apart(*tensors)
            torch.npu.synchronize()
            return y

        return call

    def session(self, name: str, operator: Operator, rows: int) -> Any:
        from sessions import numpy_dtype, session_of

        dtype = numpy_dtype(self.dtype)
        element = helper.np_dtype_to_tensor_dtype(dtype)
        outputs = ["y", *(f"unused_{i}" for i in range(1, operator.outputs))]
        node = helper.make_node(
            operator.op_type, operator.tensors, outputs, domain="npu",
            **self.attributes(operator, rows, "world"),
        )  # fmt: skip
        tensors = self.tensors(operator, rows)
        given = [
            helper.make_tensor_value_info(n, element, tuple(t.shape))
            for n, t in zip(operator.tensors, tensors, strict=True)
        ]
        y = helper.make_tensor_value_info("y", element, [None, None])
        graph = helper.make_graph([node], name, given, [y])
        made = session_of(graph, onnxruntime_npu.get_ep_name(), 1, {"communicator": "mpi"})
        binding = made.io_binding()
        for n, tensor in zip(operator.tensors, tensors, strict=True):
            value = onnxruntime_npu.ortvalue_from_numpy(tensor.float().numpy().astype(dtype))
            binding.bind_ortvalue_input(n, value)
        binding.bind_output("y", "npu")

        def call() -> np.ndarray:
            made.run_with_iobinding(binding)
            binding.synchronize_outputs()
            return binding.get_outputs()[0]

        return call

    def call(self, name: str, rows: int) -> Callable[[], Any]:
        """The call of an operator, which has been made once."""
        if (name, rows) not in self.calls:
            self.calls = {(name, rows): self.make(name, OPERATORS[name], rows)}
            self.calls[name, rows]()
        return self.calls[name, rows]

    def result(self, name: str, rows: int, _: int) -> np.ndarray:
        y = self.call(name, rows)()
        if isinstance(y, torch.Tensor):
            return y.cpu().float().numpy()
        return onnxruntime_npu.ortvalue_to_numpy(y).astype(np.float32)

    def seconds(self, name: str, rows: int, calls: int) -> list[float]:
        call = self.call(name, rows)
        found = []
        for _ in range(calls):
            dist.barrier()
            begin = time.perf_counter()
            call()
            found.append(time.perf_counter() - begin)
        return found


def main() -> None:
    folder, kind, dtype = sys.argv[1:]
    store = f"file://{Path(folder) / 'store'}"
    dist.init_process_group("cpu:gloo,npu:hccl", init_method=store, rank=RANK, world_size=SIZE)
    rank = Rank(kind, dtype)
    with Client(str(Path(folder) / "socket")) as connection:
        connection.send(RANK)
        while True:
            try:
                method, *arguments = connection.recv()
            except EOFError:
                break
            connection.send(getattr(rank, method)(*arguments))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
