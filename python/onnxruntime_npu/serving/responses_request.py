"""Bodies of /v1/responses: what a chat is asked for, in other words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    StringConstraints,
    Tag,
    model_validator,
)

from .api_errors import ApiError, shown
from .generation_body import (
    TEXT_ONLY,
    Alternatives,
    Count,
    Generation,
    TemplateArguments,
    Unavailable,
)
from .messages import Body, Message, TopBody
from .response_format import (
    AnyObject,
    AnyText,
    Grammar,
    JsonOfSchema,
    NamedSchema,
    Regex,
    ResponseFormat,
)
from .responses_items import Item, chat_messages
from .texts import FIRST_ERROR, TEXT_OR_LIST, TEXT_OR_OBJECT
from .tools import AllowedTools, Function, NamedFunction, NamedTool, SomeTools, Tool, ToolChoice

# What a chat's parameters are called here.
_OWN_NAMES = {"messages": "input", "response_format": "text"}
_NOTHING_STORED = "nothing is stored here, so send the whole conversation in input"
_UNAVAILABLE: Unavailable = {
    "access_programs": ((None,), "there are none here"),
    "background": ((None, False), "nothing is stored here, so read the answer or its stream"),
    "background_options": ((None,), "nothing is stored here, so read the answer or its stream"),
    "context_management": ((None, []), "use truncation to leave out the oldest turns"),
    "conversation": ((None,), _NOTHING_STORED),
    "image": ((None,), TEXT_ONLY),
    "moderation": ((None,), "texts are not judged here"),
    "personality": ((None,), "say it in instructions"),
    "previous_response_id": ((None,), _NOTHING_STORED),
    "prompt": ((None,), "nothing is stored here, so send its text in input"),
    "reasoning": (
        (None, {}, {"effort": None}, {"effort": None, "summary": None}),
        "how much a model reasons is up to its chat template: see chat_template_kwargs",
    ),
    "store": ((None, False), "nothing is stored here"),
}
# What may be asked for beside an answer; only log-probabilities are of something there is here.
_SCORES = "message.output_text.logprobs"
_Included = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
_MOST_LABELS = 16


@contextmanager
def own_names() -> Iterator[None]:
    """Let the error of a chat's parameter be that of the one which has its place here."""
    try:
        yield
    except ApiError as error:
        error.param = own_name(error.param)
        raise


def own_name(param: str | None) -> str | None:
    """Return what a chat's parameter is called here."""
    return param if param is None else _OWN_NAMES.get(param, param)


class _FlatSchema(NamedSchema):
    type: Literal["json_schema"]


class TextOptions(TopBody):
    """What the text of an answer has to be."""

    format: Annotated[
        AnyText | AnyObject | _FlatSchema | Regex | Grammar | None, Field(discriminator="type")
    ] = None
    verbosity: Any = None

    @model_validator(mode="after")
    def _check(self) -> TextOptions:
        if self.verbosity is not None:
            message = "verbosity is not supported, leave it out: say it in a message"
            raise ApiError(400, "unsupported_parameter", message, param="text")
        return self


class _FlatTool(Function):
    type: Literal["function"]


def _only_functions(given: Any) -> Any:
    if isinstance(given, dict) and (kind := given.get("type", "function")) != "function":
        message = (
            f"expected tools of the type function, which the client calls itself, got "
            f"{shown(str(kind))!r}: nothing else can be called here"
        )
        raise ApiError(400, "unsupported_parameter", message, param="tools")
    return given


class _FlatName(Body):
    type: Literal["function"]
    name: str


class _FlatAllowed(Body):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[_FlatName], Field(min_length=1, fail_fast=True)]


_FlatChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("text")]
    | Annotated[_FlatName | _FlatAllowed, Field(discriminator="type"), Tag("object")],
    TEXT_OR_OBJECT,
]


class ResponsesRequest(Generation):
    """Body of /v1/responses."""

    prompt_name: ClassVar[str] = "input"
    unavailable: ClassVar[Unavailable] = _UNAVAILABLE
    labels: ClassVar[frozenset[str]] = Generation.labels - {"metadata"}

    input: Annotated[
        Annotated[str, Tag("text")]
        | Annotated[list[Item], Field(min_length=1, fail_fast=True), Tag("list")],
        TEXT_OR_LIST,
    ]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    max_tool_calls: Count | None = None  # of those that the server itself makes: there are none
    text: TextOptions = TextOptions()
    tools: (
        Annotated[list[Annotated[_FlatTool, BeforeValidator(_only_functions)]], FIRST_ERROR] | None
    ) = None
    tool_choice: _FlatChoice | None = None
    parallel_tool_calls: bool | None = None
    include: Annotated[list[_Included], FIRST_ERROR] | None = None
    top_logprobs: Alternatives | None = None
    chat_template_kwargs: TemplateArguments
    truncation: Literal["auto", "disabled"] = "disabled"
    metadata: dict[
        Annotated[str, StringConstraints(max_length=64)],
        Annotated[str, StringConstraints(max_length=512)],
    ] = Field(default_factory=dict, max_length=_MOST_LABELS)

    @model_validator(mode="wrap")
    @classmethod
    def _tell_own_names(
        cls, body: Any, read: ModelWrapValidatorHandler[ResponsesRequest]
    ) -> ResponsesRequest:
        with own_names():
            return read(body)

    @property
    def scores(self) -> int | None:
        """How many tokens are wanted beside each one, with log-probabilities; None: no scores."""
        wanted = self.top_logprobs or _SCORES in (self.include or ())
        return (self.top_logprobs or 0) if wanted else None

    @property
    def messages(self) -> list[Message]:
        """The conversation, as a chat has it; raises a 400 for one that cannot be meant."""
        return chat_messages(self.instructions, self.input)

    @property
    def form(self) -> ResponseFormat | None:
        """What the text has to be, as a chat has it."""
        if isinstance(self.text.format, _FlatSchema):
            return JsonOfSchema(type="json_schema", json_schema=self.text.format)
        return self.text.format

    @property
    def offered(self) -> list[Tool]:
        """The tools, as a chat has them."""
        return [
            Tool(type="function", function=Function(**tool.model_dump(exclude={"type"})))
            for tool in self.tools or []
        ]

    @property
    def choice(self) -> ToolChoice | None:
        """Which tools may be called, as a chat has it."""
        given = self.tool_choice
        if isinstance(given, _FlatName):
            return _named(given)
        if isinstance(given, _FlatAllowed):
            some = SomeTools(mode=given.mode, tools=[_named(each) for each in given.tools])
            return AllowedTools(type="allowed_tools", allowed_tools=some)
        return given

    def repeated(self) -> dict[str, Any]:
        """Return what an answer repeats of its request."""
        choice = self.tool_choice or "auto"
        return {
            "background": False,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata,
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "store": False,
            "text": {
                "format": (self.text.format or AnyText(type="text")).model_dump(by_alias=True)
            },
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [tool.model_dump() for tool in self.tools or []],
            "top_logprobs": self.top_logprobs or 0,
            "truncation": self.truncation,
        }


def _named(given: _FlatName) -> NamedTool:
    return NamedTool(type="function", function=NamedFunction(name=given.name))
