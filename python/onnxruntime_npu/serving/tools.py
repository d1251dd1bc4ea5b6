"""Tools that a request offers: their definitions, which may be called, and how it is made sure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, Tag, model_validator

from .api_errors import ApiError, bad_request, shown
from .engine_messages import Guidance
from .messages import Body
from .response_format import AnyText, ResponseFormat, as_rule, checked, guidance_of, json_text
from .served_model import ServedModel
from .texts import TEXT_OR_OBJECT
from .tool_calls import ToolCallParser
from .tool_formats import ToolFormat

_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_ANY_ARGUMENTS = {"type": "object"}


class Function(Body):
    """A function; ``parameters`` is a JSON schema of an object."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> Function:
        kind = (self.parameters or {}).get("type", "object")
        if kind != "object":
            got = shown(json.dumps(kind))
            message = f"expected parameters of {self.name} of the type object, got {got}"
            raise bad_request(message, param="tools")
        return self


class Tool(Body):
    """A tool that may be called."""

    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    """The name of a function."""

    name: str


class NamedTool(Body):
    """The tool that has to be called."""

    type: Literal["function"]
    function: NamedFunction


class SomeTools(Body):
    """Tools that may or have to be called, of those that are offered."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, fail_fast=True)]


class AllowedTools(Body):
    """A choice among some of the tools, of which the model is told all."""

    type: Literal["allowed_tools"]
    allowed_tools: SomeTools


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("text")]
    | Annotated[NamedTool | AllowedTools, Field(discriminator="type"), Tag("object")],
    TEXT_OR_OBJECT,
]


@dataclass(frozen=True)
class Tools:
    """The tools that an answer may call, all of them by default.

    Attributes:
        form: how the model writes calls.
        offered: what its template is given.
        callable: those of them that may be called; ``named``: one was asked for.
        must: a tool has to be called.
        parallel: several calls may be in an answer.
    """

    form: ToolFormat
    offered: Sequence[Tool]
    callable: Sequence[Tool]
    must: bool
    named: bool
    parallel: bool

    def parser(self) -> ToolCallParser:
        """Return what finds calls in an answer."""
        return ToolCallParser(self.form, [tool.function.name for tool in self.callable])

    def guidance(self, model: ServedModel, asked: ResponseFormat | None) -> Guidance | None:
        """Return the grammar of an answer; None if everything is allowed.

        Without an obligation to call, text may stand before calls. Then only the calls follow a
        grammar, and that only if a function is strict, whose arguments have to follow its schema.
        """
        if self.must:
            start = "calls"
        elif asked is not None and not isinstance(asked, AnyText):
            start = f"calls | {as_rule(asked)}"
        elif any(tool.function.strict for tool in self.callable):
            start = "text"
        else:
            return None
        rules = self.form.grammar(
            [(tool.function.name, self._schema(tool.function)) for tool in self.callable],
            lambda text: model.literal(text, self.form.markers),
            self.parallel,
        )
        return checked("lark_grammar", f"start: {start}\n{rules}", "tools")

    def _schema(self, function: Function) -> str:
        if function.parameters is None:
            return json_text(_NO_ARGUMENTS)
        followed = function.parameters if self.must or function.strict else {}
        return json_text({**_ANY_ARGUMENTS, **followed})


def tools_of(
    model: ServedModel,
    offered: Sequence[Tool],
    choice: ToolChoice | None,
    parallel: bool | None,
) -> Tools | None:
    """Return what the parameters of a request say; None: no calls.

    Raises a 400 for tools that the model does not know how to call, and for a choice of none of
    them.
    """
    if not offered:
        if choice not in (None, "none", "auto"):
            raise bad_request("expected tools beside tool_choice", param="tool_choice")
        return None
    if choice == "none":
        return None
    if model.tool_format is None:
        message = "the model's chat template has no way to call tools that this server knows"
        raise ApiError(400, "unsupported_parameter", message, param="tools")
    named, must, names = False, choice == "required", None
    if isinstance(choice, NamedTool):
        named = must = True
        names = {choice.function.name}
    elif isinstance(choice, AllowedTools):
        must = choice.allowed_tools.mode == "required"
        names = {tool.function.name for tool in choice.allowed_tools.tools}
    if names is not None and (others := names - {tool.function.name for tool in offered}):
        message = f"tool_choice names a function that is not offered: {shown(min(others))}"
        raise bad_request(message, param="tool_choice")
    return Tools(
        model.tool_format,
        offered,
        [tool for tool in offered if names is None or tool.function.name in names],
        must=must,
        named=named,
        parallel=parallel is not False and not named,
    )


def guidance_for(
    model: ServedModel, tools: Tools | None, asked: ResponseFormat | None
) -> Guidance | None:
    """Return the grammar of an answer; None if everything is allowed."""
    return guidance_of(asked) if tools is None else tools.guidance(model, asked)
