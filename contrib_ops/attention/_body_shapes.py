"""Shape arithmetic for the ONNX function bodies of attention."""


class Shapes:
    """Shape arithmetic with a body's builder."""

    def __init__(self, b):
        self.b = b

    def of(self, x, start, end):
        """Return the axes [start, end) of x's shape."""
        return self.b.Shape(x, start=start, end=end)

    def join(self, *parts):
        """Concatenate axes; numbers also count as axes."""
        b = self.b
        return b.Concat(
            *[b.const([p], "int64") if isinstance(p, int) else p for p in parts], axis=0
        )

    def reshape(self, x, *parts):
        """Reshape x to the joined axes."""
        return self.b.Reshape(x, self.join(*parts), allowzero=1)

    def count_to(self, n):
        """Return 0 .. n - 1."""
        b = self.b
        return b.Range(b.const(0, "int64"), b.Squeeze(n), b.const(1, "int64"))
