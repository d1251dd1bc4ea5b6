"""A random choice among the true elements, each once.

Source: torch_npu.npu_random_choice_with_mask. torch_npu does not say which sequence a seed gives:
this device's is of Philox, and the same for a pair of seeds everywhere.
"""

from onnxruntime_npu.opdef import Sample, check, is_traced, npu_op, torch
from onnxruntime_npu.opdef.philox import philox

op = npu_op(
    "npu_random_choice_with_mask(Tensor x, int count=256, int seed=0, int seed2=0)"
    " -> (Tensor, Tensor)",
    onnx="NPURandomChoiceWithMask",
    outputs=["index", "mask"],
    dtypes={"x": ["bool"], "index": ["int32"], "mask": ["bool"]},
    not_portable="standard operators draw other random numbers",
)

_MOST = 2**31 - 1


@op.host
def host(draws, x, count, seed, seed2):
    """Draw the seed of a call without seeds; a trace keeps it so, and draws when it runs."""
    drawn = {} if seed or seed2 or is_traced(x) else {"seed": draws.seed()}
    return drawn, ()


@op.reference
def reference(x, count=256, seed=0, seed2=0):
    """Return the coordinates of the chosen elements, [count, rank] int32, and [count] which count.

    x: bool, of 1 to 5 axes. The true elements, in row-major order, are shuffled: for k = 0, 1, ..
    place k changes with place k + word k of Philox 4x32-10, key seed and offset seed2, modulo the
    number of places from k on. The first count are returned; behind them 0 and false. With both
    seeds 0 each call has another key, which torch draws from its generator.
    """
    name = "[npu_random_choice_with_mask]"
    check(1 <= x.dim() <= 5, f"{name} expected x of 1 to 5 axes, got {list(x.shape)}")
    check(0 < count <= _MOST, f"{name} expected count from 1 to {_MOST}, got {count}")
    index = torch.zeros(count, x.dim(), dtype=torch.int32, device=x.device)
    mask = torch.zeros(count, dtype=torch.bool, device=x.device)
    if is_traced(x):
        return index, mask
    places = x.nonzero().to(torch.int32)
    found = min(count, len(places))
    order = list(range(len(places)))
    words = philox(seed, seed2, torch.arange(found)).tolist()
    for k, word in enumerate(words):
        other = k + word % (len(order) - k)
        order[k], order[other] = order[other], order[k]
    index[:found] = places[order[:found]]
    mask[:found] = True
    return index, mask


@op.samples
def samples(make):
    yield Sample(
        make.tensor([False, True, False, False]), 2, 3, id="one", expect=[[[1], [0]], None]
    )
    yield Sample(make.bools(5, 6, 7), 20, 5, 11, id="fewer_than_true")
    yield Sample(make.bools(4, 6, p=0.2), 30, -3, id="more_than_true")
    yield Sample(make.bools(0, 3), 2, 1, id="empty")


op.errors(
    lambda make: Sample(make.bools(2, 3), 0, 1),
    match=r"\[npu_random_choice_with_mask\] expected count from 1 to 2147483647, got 0",
    id="count",
)
op.errors(
    lambda make: Sample(make.tensor(True), 2, 1),
    match=r"\[npu_random_choice_with_mask\] expected x of 1 to 5 axes, got \[\]",
    id="scalar",
)
