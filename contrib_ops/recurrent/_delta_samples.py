"""Calls of the gated delta rule: tensors of samples, and what is refused."""

from onnxruntime_npu.opdef import Sample, torch


def query_key_value(make, tokens, key_heads=2, heads=4, width=8, value_width=6):
    """Return query, key and value; keys of length 1, without which the states grow."""
    key = torch.nn.functional.normalize(make(tokens, key_heads, width).float(), dim=-1)
    query = make(tokens, key_heads, width)
    return query, key.to(query.dtype), make(tokens, heads, value_width)


def gates(make, tokens, heads=4):
    """Return beta and g, as keyword arguments."""
    return {
        "beta": make.uniform(tokens, heads),
        "g": make.uniform(tokens, heads, low=-1.0, dtype="float32"),
    }


def five_tokens(make):
    """Return the arguments of two sequences that both operators take."""
    query, key, value = query_key_value(make, 5)
    lengths = make.tensor([2, 3], "int32")
    return {
        "query": query,
        "key": key,
        "value": value,
        **gates(make, 5),
        "actual_seq_lengths": lengths,
    }


def refusals(op, name, arguments):
    """Return a function that declares a call with changed arguments that must be refused."""

    def refuse(id, match, change, needs_values=False):
        op.errors(
            lambda make: Sample(**arguments(make) | change(make)),
            match=rf"\[{name}\] expected {match}",
            needs_values=needs_values,
            id=id,
        )

    return refuse
