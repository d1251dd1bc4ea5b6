"""Samples, tolerances and refusals that the definitions of attention share."""

from onnxruntime_npu.opdef import Sample, torch

from ._patterns import COMPRESSED


def compressed_mask():
    """Return the mask that sparse modes 2, 3 and 4 require."""
    return torch.ones(COMPRESSED, COMPRESSED, dtype=torch.bool).triu(1)


def catalogue_operands(make):
    """Return query, key and value [1, 1, rows, 2] of the example with known results."""
    return (
        make.tensor([[[[1.0, 0.0], [0.0, 1.0]]]]),
        make.tensor([[[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]]]),
        make.tensor([[[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]]]),
    )


def tolerate_rounded_weights(op):
    """Set the bfloat16 tolerance, as weights are rounded before the second matmul."""
    op.tolerance(
        "bfloat16",
        rtol=8e-3,
        atol=8e-3,
        reason="weights are rounded before the second product (2^-9 relative each), as on the "
        "device, and the result once (2^-9)",
    )


def refusals(op, query, make_cache=None):
    """Return ``refuse(text, id, *shapes, needs_values=False, **arguments)``.

    It adds a BSND call with 4 query and 2 key heads that must fail with the text; an argument may
    be a function of ``make``. ``query`` is the shape of query if no shapes of query, key and value
    are given; ``make_cache(make, *shape)`` creates key and value, by default with float values.
    """

    def refuse(text, id, *shapes, needs_values=False, **arguments):
        query_shape, *cache_shapes = shapes or (query, (2, 8, 2, 16), (2, 8, 2, 16))

        def call(make):
            kwargs = {"input_layout": "BSND", "num_heads": 4, "num_key_value_heads": 2, **arguments}
            kwargs = {k: v(make) if callable(v) else v for k, v in kwargs.items()}
            caches = (make_cache(make, *s) if make_cache else make(*s) for s in cache_shapes)
            return Sample(make(*query_shape), *caches, **kwargs)

        op.errors(call, match=rf"\[{op.name}\] expected {text}", id=id, needs_values=needs_values)

    return refuse
