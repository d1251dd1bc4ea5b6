"""The contents of an operator's definition file, and what is derived from them.

Every other form of an operator (torch.library op, ONNX schema, exporter translation, kernel table,
documentation, stubs, tests) is derived from an :class:`Op`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from . import dtypes as dt
from .definition_base import Definition
from .draws import Draws
from .node_parts import (
    SEED,
    Attribute,
    AttributeTyping,
    DefinitionError,
    Input,
    Output,
    attribute_typings,
    checked_typings,
    node_outputs,
    parse_out,
    parse_twin,
    split_arguments,
    understood_in_files,
)
from .samples import Tolerance, default_tolerance
from .schema import Argument, Schema, parse_schema
from .type_codes import NumberType, TypeCodes, TypedBy


class _LazyTorch:
    """Stand-in for the torch module, so that definitions can be read without torch."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch"), name)


torch = _LazyTorch()


class NotPortable(Exception):
    """Raised by a function body for a call that standard ONNX operators cannot express."""


@dataclass(frozen=True)
class TypeAlias:
    """Another ONNX op type of the operator in model files.

    ``inputs`` distinguishes it by the number of inputs if another operator has the same type;
    ``order`` names the inputs as this type takes them where that is not the schema's order.
    """

    type: str
    inputs: int | None = None
    order: tuple[str, ...] = ()


@dataclass(frozen=True)
class Backward:
    """The gradient formula of an operator."""

    function: Callable[..., Any]
    arguments: tuple[str, ...]  # arguments whose gradients it returns, in this order
    outputs: tuple[str, ...]  # outputs whose gradients it takes: the differentiable ones
    saves: tuple[str, ...]  # arguments and outputs that it reads
    takes_needs: bool
    constants: str = ""  # what it takes for constant although it depends on the arguments


@dataclass(frozen=True)
class StaticSize:
    """Sizes of an argument that a trace fixes, though a call with others is possible."""

    argument: str
    axes: tuple[int, ...]
    reason: str


@dataclass(eq=False, kw_only=True)
class Op(Definition):
    """One operator, created by :func:`npu_op`; its methods are the decorators of a definition."""

    onnx_type: str
    inputs: tuple[Input, ...]
    attributes: tuple[Attribute, ...]
    outputs: tuple[Output, ...]
    inplace: Schema | None
    torch_aliases: tuple[Schema, ...]
    type_aliases: tuple[TypeAlias, ...]
    may_alias: tuple[tuple[int, int], ...]
    seeded: bool = False
    typings: tuple[Mapping[str, str], ...] = ()
    attribute_typings: tuple[AttributeTyping, ...] = ()
    not_portable: str = ""
    ignored_attributes: tuple[str, ...] = ()
    body_function: Callable[..., Any] | None = None
    backward_formula: Backward | None = None
    host_function: Callable[..., tuple[dict[str, Any], tuple[int, ...]]] | None = None
    tolerances: dict[str, Tolerance] = field(default_factory=dict)
    static_sizes: list[StaticSize] = field(default_factory=list)

    @property
    def min_inputs(self) -> int:
        """Number of leading node inputs up to the last required one."""
        return max((i + 1 for i, x in enumerate(self.inputs) if not x.optional), default=0)

    @property
    def mutable_alias(self) -> tuple[tuple[int, int], ...]:
        """Pairs (input, output) where the output is the updated input."""
        position = {x.name: i for i, x in enumerate(self.inputs)}
        return tuple((position[o.mutates], j) for j, o in enumerate(self.outputs) if o.mutates)

    @property
    def node_arguments(self) -> tuple[Argument, ...]:
        """The arguments of the schema, and the seed of an operator that draws random numbers."""
        return (*self.schema.arguments, SEED) if self.seeded else self.schema.arguments

    def taking(self, order: Sequence[str]) -> Op:
        """Return the operator as a node type has it whose inputs come in another order."""
        names = [x.name for x in self.inputs]
        moved = [names.index(name) for name in order]
        body = self.body_function

        def reordered(b: Any, call: Any, *given: Any) -> Any:
            assert body is not None
            return body(b, call, *(given[moved.index(i)] for i in range(len(moved))))

        return replace(
            self,
            inputs=tuple(self.inputs[i] for i in moved),
            may_alias=tuple((moved.index(i), j) for i, j in self.may_alias),
            body_function=body and reordered,
        )

    # ---- decorators ---------------------------------------------------------------------------

    def reference(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Set the semantics: plain torch, exact in float32, never writing to its arguments.

        It receives every argument by its schema name and returns the node outputs, i.e. the results
        followed by the new values of written arguments that are not results themselves.
        """
        names = [a.name for a in self.node_arguments]
        try:
            inspect.signature(function).bind(**dict.fromkeys(names))
        except TypeError as error:
            raise DefinitionError(
                f"[{self.name}] expected the reference to take {names}: {error}"
            ) from None
        return super().reference(function)

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Set the portable ONNX body: ``body(b, call, *inputs)``, see function_body.py."""
        self.body_function = function
        return function

    def backward(
        self, *arguments: str, constants: str = ""
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Set the gradients of the named tensor arguments.

        The parameters of the formula declare its inputs: ``grad_<output>`` is the gradient of an
        output (None if it has none; an output without such a parameter is not differentiable),
        the name of an argument or output is its value, which is saved for this, and ``needs`` is
        the set of arguments whose gradients are required. ``seed``, for a ``seeded`` operator, is
        the drawn seed, or 0 in a traced call, which draws when the trace runs. It returns the
        gradients in the order of ``arguments``; None means zero or not required.

        ``constants`` says which part of the operator upstream's gradient takes for constant: such
        a formula is held to autograd through the reference, which detaches that part, instead of
        to finite differences, and it is not differentiated again.
        """

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.backward_formula = replace(
                self._backward(function, arguments), constants=constants
            )
            return function

        return register

    def _backward(self, function: Callable[..., Any], arguments: tuple[str, ...]) -> Backward:
        if self.mutable_alias:
            raise DefinitionError(
                f"[{self.name}] expected an operator that writes to no argument to have a backward"
            )
        tensors = {x.name for x in self.inputs if not x.is_list_of_ints}
        if not arguments or not tensors.issuperset(arguments):
            raise DefinitionError(
                f"[{self.name}] expected the backward to name tensors of {sorted(tensors)}, "
                f"got {list(arguments)}"
            )
        output_names = {o.name for o in self.outputs}
        readable = output_names | {a.name for a in self.node_arguments}
        outputs: list[str] = []
        saves: list[str] = []
        parameters = [p for p in inspect.signature(function).parameters if p != "needs"]
        for parameter in parameters:
            output = parameter.removeprefix("grad_")
            if output != parameter and output in output_names:
                outputs.append(output)
            elif parameter in readable:
                saves.append(parameter)
            else:
                raise DefinitionError(
                    f"[{self.name}] expected the backward to take grad_<output>, arguments, "
                    f"outputs and needs, got {parameter!r}"
                )
        if not outputs:
            raise DefinitionError(f"[{self.name}] expected the backward to take a grad_<output>")
        takes_needs = "needs" in inspect.signature(function).parameters
        return Backward(function, arguments, tuple(outputs), tuple(saves), takes_needs)

    def host(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Set the host computation before a torch call: ``host(draws, **arguments)``.

        It returns the arguments that it changes, by name, and the integer results, which a node
        does not have. ``draws`` gives numbers of the device's default generator (``opdef.draws``).
        """
        self.host_function = function
        return function

    def static(self, argument: str, *axes: int, reason: str) -> None:
        """State that a trace fixes the sizes of these axes, negative ones from the end, and why.

        Without axes: of all of them, or of all entries of a list.
        """
        if not reason or argument not in {x.name for x in self.inputs}:
            raise DefinitionError(
                f"[{self.name}] expected an input and a reason for static sizes, got {argument!r}"
            )
        self.static_sizes.append(StaticSize(argument, axes, reason))

    def tolerance(self, dtype: str, *, rtol: float, atol: float, reason: str) -> None:
        """Set the tolerance of ``dtype`` results against the float64 reference, and the reason."""
        if not reason:
            raise DefinitionError(f"[{self.name}] expected a reason for the {dtype} tolerance")
        self.tolerances[dtype] = Tolerance(rtol, atol, reason)

    # ---- derived ------------------------------------------------------------------------------

    @property
    def differentiable_twice(self) -> bool:
        """Whether the formula is differentiable: not if it reads a non-differentiable output."""
        formula = self.backward_formula
        return (
            formula is not None
            and not formula.constants
            and not any(
                output.name in formula.saves and output.name not in formula.outputs
                for output in self.outputs
                if any(dt.is_floating(name) for name in output.dtypes)
            )
        )

    def tolerance_for(self, dtype: str) -> Tolerance:
        """Return the stated or the default tolerance for calls in ``dtype``."""
        return self.tolerances.get(dtype) or default_tolerance(dtype)

    def is_static(self, argument: str, axis: int, rank: int) -> bool:
        """Whether the definition says that a trace fixes this size of an argument."""
        return any(
            s.argument == argument and (not s.axes or axis in s.axes or axis - rank in s.axes)
            for s in self.static_sizes
        )

    def torch_schemas(self) -> tuple[Schema, ...]:
        """Return the schema of every torch name: the operator's, its twin's, its aliases'."""
        twins = (self.inplace,) if self.inplace else ()
        return (self.schema, *twins, *self.torch_aliases)

    def call_reference(self, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the reference and return its outputs as a tuple."""
        if self.reference_function is None:
            raise DefinitionError(f"[{self.name}] expected an @op.reference in {self.source}")
        bound = self.bind(args, kwargs)
        for attribute in self.attributes:
            if attribute.names_type:
                name = attribute.argument.name
                bound[name] = attribute.names_type.name_of(bound[name])
        result = self.reference_function(**bound)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    def settle(self, bound: dict[str, Any]) -> tuple[dict[str, Any], tuple[int, ...]]:
        """Return the arguments after the host computation, and the integer results."""
        if self.host_function is None:
            return bound, ()
        changed, integers = self.host_function(Draws(self.name, bound), **bound)
        return {**bound, **changed}, integers

    @property
    def is_settled_in_python(self) -> bool:
        """Whether a call needs Python in addition to its kernel."""
        return self.host_function is not None or self._has_variadic_output

    @property
    def _has_variadic_output(self) -> bool:
        return bool(self.outputs) and self.outputs[-1].variadic

    def node_results(self, bound: Mapping[str, Any]) -> tuple[Any, ...]:
        """Run the reference and return one tensor for every output of the node."""
        outputs: list[Any] = []
        for value in self.call_reference(**bound):
            outputs += value if isinstance(value, (list, tuple)) else [value]
        return tuple(outputs)

    def count_outputs(self, bound: Mapping[str, Any]) -> int:
        """Return the number of outputs of a call's node."""
        return len(self.node_results(bound)) if self._has_variadic_output else len(self.outputs)

    def draw_seed(self, bound: Mapping[str, Any]) -> int:
        """Return a nonzero number from the default generator of the device of a call's tensors.

        Raises:
            ArgumentError: the call is being traced.

        """
        return Draws(self.name, bound).seed()

    def iterate_inputs(self, bound: Mapping[str, Any]) -> Iterator[tuple[Input, Any]]:
        """Yield every node input with its argument's value."""
        for node_input in self.inputs:
            yield node_input, bound[node_input.name]

    def attribute_values(self, bound: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes of a call, without those whose value is None."""
        values = ((a.name, a.to_onnx(bound[a.argument.name])) for a in self.attributes)
        return {name: value for name, value in values if value is not None}


def npu_op(
    schema: str,
    *,
    onnx: str,
    dtypes: Mapping[str, Sequence[str]],
    outputs: Sequence[str] | None = None,
    inplace: str | None = None,
    out: str | None = None,
    may_alias: Sequence[tuple[str, str]] = (),
    aliases: Sequence[str | TypeAlias] = (),
    torch_aliases: Sequence[str] = (),
    cpu: Sequence[str] = (),
    late: Sequence[str] = (),
    sample_dtypes: Sequence[str] | None = None,
    seeded: bool = False,
    typings: Iterable[Mapping[str, str]] = (),
    type_codes: Mapping[str, TypeCodes] | None = None,
    typed_by: Mapping[str, TypedBy] | None = None,
    number_types: Mapping[str, NumberType] | None = None,
    attribute_names: Mapping[str, str] | None = None,
    attribute_aliases: Mapping[str, Sequence[str]] | None = None,
    attribute_words: Mapping[str, Sequence[str]] | None = None,
    not_portable: str = "",
    ignored_attributes: Sequence[str] = (),
    dtype_notes: Mapping[str, str] | None = None,
) -> Op:
    """Define an operator.

    Args:
        schema: the torch schema, as torch_npu registers it, with the first tensor named ``self``.
        onnx: the ONNX op type in domain ``npu``.
        dtypes: element types of every tensor argument and output, by name.
        outputs: names of the node outputs: the results, then other written arguments.
        inplace: schema of the twin that writes the first output into its ``(a!)`` argument.
        out: schema of the overload that writes the results into tensors of the caller: the same
            arguments, optionally ``Tensor? workspace``, which has no effect, and a ``(a!)`` tensor
            per result or ``Tensor(a!)[] out``.
        may_alias: pairs (input, output) that may share a buffer.
        aliases: other op types of the operator in ONNX files.
        torch_aliases: schemas of other torch names with the same arguments and meaning.
        cpu: arguments whose values the kernel reads on the host: tensors, or int lists, which then
            are node inputs instead of attributes.
        late: arguments in host memory that the kernel can also read in device memory when it runs,
            as in sessions that replay graphs (provider option ``enable_npu_graph``).
        sample_dtypes: dtypes that samples are made for; default: those of the first tensor.
        seeded: whether the operator draws random numbers though the schema has no seed. The node
            and the reference then take ``seed``; a torch call draws it from the default generator.
        typings: if a result's type is not that of one input: combinations of element types of
            inputs and results, by name; the first that matches a node applies. An unnamed input may
            have any type, ABSENT means an omitted input, and an unnamed result of several possible
            types has the type that the model declares.
        type_codes: arguments that name an element type, by torch's number in a call and by another
            code in a node. The reference gets the name of the type.
        typed_by: results whose type such an argument, or another integer, decides.
        number_types: numbers of which a node has the type besides, in an attribute of its own, for
            results that ``typed_by`` gives that type.
        attribute_names: what a node calls its attributes where that is not the argument's name,
            which is understood in files as well.
        attribute_aliases: other names that files give an argument's attribute.
        attribute_words: strings that files have instead of an argument's integers, from 0 on.
        not_portable: which calls standard ONNX operators cannot express, and why: those for which
            the body raises NotPortable, or all calls of an operator without a body.
        ignored_attributes: integers that nodes of other exporters have, and that say only what the
            tensors tell.
        dtype_notes: what errors say, after a type that a tensor may not have, by tensor: words of
            upstream that scripts look for.

    """
    parsed = parse_schema(schema)
    op = parsed.name
    known = {a.name for a in parsed.arguments}
    attribute_names = attribute_names or {}
    for option, names in (
        ("cpu", cpu),
        ("type_codes", type_codes or ()),
        ("number_types", number_types or ()),
        ("attribute_names", attribute_names),
        ("attribute_aliases", attribute_aliases or ()),
        ("attribute_words", attribute_words or ()),
        ("dtype_notes", dtype_notes or ()),
    ):
        for name in names:
            if name not in known:
                raise DefinitionError(f"[{op}] expected '{option}' to name arguments, got {name!r}")
    inputs, attributes = split_arguments(
        parsed, dtypes, frozenset(cpu), frozenset(late), type_codes, dtype_notes
    )
    on_host = {x.name for x in inputs if x.cpu}
    if not on_host.issuperset(late):
        raise DefinitionError(
            f"[{op}] expected 'late' to name arguments in host memory, {sorted(on_host)}, "
            f"got {list(late)}"
        )
    attributes = understood_in_files(
        op, attributes, attribute_names, attribute_aliases or {}, attribute_words or {}
    )
    attributes += tuple(
        Attribute(rule.attribute, parsed.argument(name), "int", number_type=rule)
        for name, rule in (number_types or {}).items()
    )
    if seeded:
        attributes = (*attributes, Attribute(SEED.name, SEED, "int"))
    results = node_outputs(parsed, dtypes, outputs, inputs)
    unused = set(dtypes) - {x.name for x in inputs} - {x.name for x in results}
    if unused:
        raise DefinitionError(
            f"[{op}] expected 'dtypes' to name tensors and outputs, got {sorted(unused)}"
        )
    tensors = [x for x in inputs if not x.is_list_of_ints]
    position_in = {x.name: i for i, x in enumerate(inputs)}
    position_out = {x.name: i for i, x in enumerate(results)}
    for a, b in may_alias:
        if a not in position_in or b not in position_out:
            raise DefinitionError(f"[{op}] expected 'may_alias' (input, output), got {(a, b)}")
    others = tuple(TypeAlias(a) if isinstance(a, str) else a for a in aliases)
    for alias in others:
        if alias.order and sorted(alias.order) != sorted(position_in):
            raise DefinitionError(
                f"[{op}] expected the order of {alias.type} to name every input once, "
                f"got {list(alias.order)}"
            )
    return Op(
        schema=parsed,
        onnx_type=onnx,
        inputs=inputs,
        attributes=attributes,
        outputs=results,
        inplace=parse_twin(parsed, inplace) if inplace else None,
        out=parse_out(parsed, out) if out else None,
        torch_aliases=tuple(parse_twin(parsed, other) for other in torch_aliases),
        type_aliases=others,
        may_alias=tuple((position_in[a], position_out[b]) for a, b in may_alias),
        sample_dtypes=tuple(sample_dtypes or (tensors[0].dtypes if tensors else ("float32",))),
        seeded=seeded,
        typings=checked_typings(op, typings, inputs, results),
        attribute_typings=attribute_typings(op, typed_by or {}, attributes, results),
        not_portable=not_portable,
        ignored_attributes=tuple(ignored_attributes),
    )
