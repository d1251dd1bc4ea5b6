"""A tensor whose values are read, joined, transposed and converted only when they are needed.

A model of such weights computes as one of ordinary tensors does, while memory holds the weights of
one operation, not those of the model.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

# Values that are kept for the next use: about a layer, which a proof runs several times.
_KEPT_BYTES = 128 * 2**20

_aten: Any = torch.ops.aten
# These move values. A whole view shows all values of what it is of, a partial one perhaps few.
_WHOLE_VIEWS = {
    _aten.alias.default, _aten.detach.default, _aten.permute.default, _aten.squeeze.dim,
    _aten.t.default, _aten.transpose.int, _aten.unsqueeze.default, _aten.view.default,
    _aten._unsafe_view.default, _aten.expand.default,
}  # fmt: skip
_PARTIAL_VIEWS = {
    _aten.select.int, _aten.slice.Tensor, _aten.split.Tensor, _aten.split_with_sizes.default,
    _aten.unbind.int,
}  # fmt: skip
_COPIES = {_aten.cat.default, _aten.clone.default, _aten.stack.default}
# These pick values of their first argument, before rather than after all are converted.
_PICKS = {_aten.embedding.default, _aten.index.Tensor, _aten.index_select.default}


class _Values:
    """Values in the dtype that they are stored in, and how to get them."""

    def __init__(
        self,
        meta: torch.Tensor,
        make: Callable[[], torch.Tensor],
        *,
        release: Any = None,
        computed: bool = False,
    ) -> None:
        """Take a meta tensor of the result; ``release`` frees what ``make`` has read."""
        self.meta = meta
        self.make = make
        self.release = release
        self.computed = computed
        self.parents: tuple[_Values, ...] = ()
        self.view: Callable[[torch.Tensor], torch.Tensor] | None = None
        self.partial = False

    def is_cheap(self) -> bool:
        """Whether this is a view of what is stored: it copies nothing."""
        if not self.parents:
            return not self.computed
        return self.view is not None and self.parents[0].is_cheap()

    def stored(self) -> Iterator[_Values]:
        """Yield what the values are made of."""
        if not self.parents:
            yield self
        for parent in self.parents:
            yield from parent.stored()

    def get(self, casts: tuple[torch.dtype, ...]) -> torch.Tensor:
        """Return the values after conversions."""
        if self.view is not None and not (self.partial and self.parents[0].is_cheap()):
            return self.view(self.parents[0].get(casts))
        kept = _kept.get(self, casts)
        if kept is not None:
            return kept
        values = self.make()
        for dtype in casts:
            values = values.to(dtype)
        if casts or not self.is_cheap():
            self.free()
            _kept.put(self, casts, values)
        return values

    def free(self) -> None:
        """Free what was read to make the values."""
        for stored in self.stored():
            if stored.release is not None:
                stored.release()


class _Kept:
    """Values that were computed last, up to a size, of weights that still exist."""

    def __init__(self) -> None:
        self.most: float = _KEPT_BYTES
        self._found: weakref.WeakKeyDictionary[_Values, tuple[Any, torch.Tensor]] = (
            weakref.WeakKeyDictionary()
        )

    def get(self, key: _Values, casts: tuple[torch.dtype, ...]) -> torch.Tensor | None:
        found = self._found.pop(key, None)
        if found is None:
            return None
        self._found[key] = found  # as the newest
        return found[1] if found[0] == casts else None

    def put(self, key: _Values, casts: tuple[torch.dtype, ...], values: torch.Tensor) -> None:
        if values.nbytes > self.most / 2:
            return
        self._found[key] = (casts, values)
        size = sum(held.nbytes for _, held in self._found.values())
        for oldest in list(self._found):
            if size <= self.most:
                break
            size -= self._found.pop(oldest)[1].nbytes

    def forget(self) -> None:
        self._found.clear()


_kept = _Kept()


@contextlib.contextmanager
def kept_values() -> Iterator[None]:
    """Keep all values that are used inside: for a model that runs many times."""
    _kept.most = math.inf
    try:
        yield
    finally:
        _kept.most = _KEPT_BYTES
        give_back_memory()


def give_back_memory() -> None:
    """Forget kept values, and return free memory to the system, which the allocator would keep.

    For the end of a phase: what a proof frees lies between what stays, up to half of its peak.
    """
    _kept.forget()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def _moved(func: Any, args: Any, kwargs: Any, weights: Sequence[LazyWeight]) -> Any:
    """Return the weights that an operator would move the values of ``weights`` to."""
    casts = weights[0]._casts
    parents = tuple(weight._source for weight in weights)
    template, spec = pytree.tree_flatten((args, kwargs))

    def apply(given: Sequence[torch.Tensor]) -> Any:
        rest = iter(given)
        leaves = [next(rest) if isinstance(leaf, LazyWeight) else leaf for leaf in template]
        its_args, its_kwargs = pytree.tree_unflatten(leaves, spec)
        return func(*its_args, **its_kwargs)

    def weight(meta: torch.Tensor, pick: Callable[[Any], torch.Tensor]) -> LazyWeight:
        values = _Values(meta, lambda: pick(apply([parent.make() for parent in parents])))
        values.parents = parents
        if func not in _COPIES:
            values.view = lambda whole: pick(apply([whole]))
            values.partial = func in _PARTIAL_VIEWS
        return LazyWeight(values, casts)

    result = apply([parent.meta for parent in parents])
    if isinstance(result, torch.Tensor):
        return weight(result, lambda made: made)
    return [weight(part, operator.itemgetter(index)) for index, part in enumerate(result)]


class LazyWeight(torch.Tensor):
    """A weight [..] on the CPU whose values no operation may change.

    Views, joins, clones and conversions give weights of the same kind; any other operation computes
    with the values.
    """

    _source: _Values
    _casts: tuple[torch.dtype, ...]

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: _Values, casts: tuple[torch.dtype, ...]) -> LazyWeight:
        """Return a tensor of values after conversions; others use ``of`` and ``computed``."""
        meta = values.meta
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            meta.size(),
            strides=meta.stride(),
            dtype=casts[-1] if casts else meta.dtype,
            device=torch.device("cpu"),
        )
        made._source, made._casts = values, casts
        return made

    @staticmethod
    def of(tensor: torch.Tensor, release: Callable[[], object] | None = None) -> LazyWeight:
        """Return a weight that shares a tensor's memory; ``release`` frees what reading takes."""
        tensor = tensor.detach()
        values = _Values(tensor.to("meta"), lambda: tensor.to("cpu"), release=release)
        return LazyWeight(values, ())

    @staticmethod
    def computed(
        make: Callable[[], torch.Tensor], shape: Sequence[int], dtype: torch.dtype
    ) -> LazyWeight:
        """Return a weight that ``make`` computes, contiguous, at each use."""
        meta = torch.empty(tuple(shape), dtype=dtype, device="meta")
        return LazyWeight(_Values(meta, make, computed=True), ())

    @property
    def data(self) -> torch.Tensor:
        """A view; setting it, as a module's ``to`` does, makes this object the tensor it is set to.

        Only so do values on another device, or of another dtype, replace those that are read.
        """
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, tensor: torch.Tensor) -> None:
        torch.utils.swap_tensors(self, torch.nn.Parameter(tensor, self.requires_grad))

    def value(self) -> torch.Tensor:
        """Return an ordinary tensor of the same shape, dtype and values; do not change it."""
        with torch.no_grad():
            return self._source.get(self._casts)

    def free(self) -> None:
        """Free what reading the weight has taken, if nothing uses its last value any more."""
        self._source.free()

    def value_as_stored(self) -> torch.Tensor:
        """Return an ordinary tensor of the same shape and values before conversions."""
        with torch.no_grad():
            return self._source.get(())

    def _cast(self, dtype: torch.dtype) -> LazyWeight:
        stored, casts = self._source.meta.dtype, self._casts
        if dtype == self.dtype:
            return LazyWeight(self._source, casts)
        # A conversion to float32 loses nothing: the next one may start from what is stored.
        exact = all(cast == torch.float32 for cast in casts) and stored.itemsize <= 4
        if exact and stored.is_floating_point:
            casts = ()
        return LazyWeight(
            self._source, casts if casts == () and dtype == stored else (*casts, dtype)
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyWeight:
        """Return a weight of the same values: nothing changes them."""
        copied: Any = LazyWeight(self._source, self._casts)
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __repr__(self, **_options: Any) -> str:  # type: ignore[override]
        """Name shape and dtype, without reading the values."""
        return f"LazyWeight({list(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # the stub is no class method
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Move values later if an operator only moves them; else compute now."""
        kwargs = kwargs or {}
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if torch.is_tensor(leaf)]
        weights = [leaf for leaf in leaves if isinstance(leaf, LazyWeight)]
        first = weights[0]
        alike = len(weights) == len(leaves) and all(
            weight._casts == first._casts and weight._source.meta.dtype == first._source.meta.dtype
            for weight in weights
        )
        if alike and (func in _WHOLE_VIEWS or func in _PARTIAL_VIEWS or func in _COPIES):
            return _moved(func, args, kwargs, weights)
        if func is _aten._to_copy.default and _only_converts(kwargs):
            return first._cast(kwargs.get("dtype") or first.dtype)
        if func in _PICKS and args[0] is first and len(weights) == 1 and first._source.is_cheap():
            picked = func(first._source.make(), *args[1:], **kwargs)
            for dtype in first._casts:
                picked = picked.to(dtype)
            return picked
        for argument, given in zip(func._schema.arguments, args, strict=False):
            if argument.is_write and isinstance(given, LazyWeight):
                raise RuntimeError(f"expected an operation that reads weights, got {func}")
        args, kwargs = pytree.tree_map_only(LazyWeight, LazyWeight.value, (args, kwargs))
        return func(*args, **kwargs)


def value_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself, or the value of a LazyWeight: do not change it."""
    return tensor.value() if isinstance(tensor, LazyWeight) else tensor.detach()


def stored_dtype(tensor: torch.Tensor) -> torch.dtype:
    """Return the dtype of a tensor, of a LazyWeight before conversions."""
    return tensor._source.meta.dtype if isinstance(tensor, LazyWeight) else tensor.dtype


def _only_converts(kwargs: dict[str, Any]) -> bool:
    device, layout = kwargs.get("device"), kwargs.get("layout")
    return (device is None or torch.device(device).type == "cpu") and layout in (
        None,
        torch.strided,
    )
