"""The fields of a request that say what the text of the answer must look like."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from engine.errors import RequestError
from engine.structured_outputs import StructuredOutputs
from engine_server.errors import ApiError, from_engine
from engine_server.request_body import TAG, Body

JsonSchema = dict[str, Any] | bool


class TextFormat(Body):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(Body):
    """A schema as OpenAI's API wraps it."""

    name: str
    """What the schema is called; the model isn't told."""
    description: str | None = None
    """What it is for; the model isn't told."""
    schema_: Annotated[JsonSchema, Field(alias="schema")]
    """The schema."""
    strict: bool | None = None
    """Accepted without effect: schemas are always kept."""


class JsonSchemaFormat(Body):
    """JSON that fits a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema
    """The schema."""


def _format_kind(value: Any) -> str | None:
    kinds = {"text": "text", "json_object": "object", "json_schema": "schema"}
    kind = value.get("type") if isinstance(value, dict) else None
    return f"{TAG}{kinds[kind]}" if isinstance(kind, str) and kind in kinds else None


ResponseFormat = Annotated[
    Annotated[TextFormat, Tag(f"{TAG}text")]
    | Annotated[JsonObjectFormat, Tag(f"{TAG}object")]
    | Annotated[JsonSchemaFormat, Tag(f"{TAG}schema")],
    Discriminator(
        _format_kind,
        custom_error_type="format_type",
        custom_error_message="must be an object with type text, json_object or json_schema",
    ),
]


class StructuredFields(Body):
    """What the whole output must look like; exactly one of these."""

    json_: Annotated[JsonSchema | str | None, Field(alias="json")] = None
    """A JSON schema, or its text."""
    json_object: bool | None = None
    """Any JSON object."""
    regex: str | None = None
    """A regular expression for the whole output."""
    choice: list[str] | None = None
    """The texts of which the output is one."""
    grammar: str | None = None
    """A grammar, in Lark's or llama.cpp's form (GBNF)."""


class StructureFields(Body):
    """The ways to ask for structure; at most one may be used."""

    response_format: ResponseFormat | None = None
    """text, json_object, or json_schema with a schema."""
    structured_outputs: StructuredFields | None = None
    """One of json, json_object, regex, choice, grammar."""
    guided_json: JsonSchema | str | None = None
    """Another name of structured_outputs.json."""
    guided_regex: str | None = None
    """Another name of structured_outputs.regex."""
    guided_choice: list[str] | None = None
    """Another name of structured_outputs.choice."""
    guided_grammar: str | None = None
    """Another name of structured_outputs.grammar."""

    def structure(self) -> Structure | None:
        """Return what was asked for.

        Raises:
            ApiError: it is asked for twice, or can't be meant.
        """
        asked = [found for found in (*self._formats(), *self._guided()) if found is not None]
        if len(asked) > 1:
            names = " and ".join(structure.field for structure in asked)
            raise ApiError(
                400,
                f"{names}: ask for structure once",
                param=asked[1].field,
                code="invalid_value",
            )
        return asked[0] if asked else None

    def _formats(self) -> list[Structure | None]:
        found: list[Structure | None] = []
        match self.response_format:
            case JsonObjectFormat():
                found.append(demand("response_format", json_object=True))
            case JsonSchemaFormat(json_schema=named):
                path = "response_format.json_schema.schema"
                found.append(demand("response_format", path, json=named.schema_))
        if (given := self.structured_outputs) is not None:
            values = given.model_dump(by_alias=True, exclude_none=True)
            found.append(demand("structured_outputs", "", **values))
        return found

    def _guided(self) -> list[Structure | None]:
        return [
            demand(field, **{kind: value})
            for kind in ("json", "regex", "choice", "grammar")
            if (value := getattr(self, field := f"guided_{kind}")) is not None
        ]


class Structure:
    """A demand, and how the client spells it.

    Attributes:
        field: the client's parameter.
        asked: the engine's.
        spelling: the client's names of what the engine calls otherwise.
    """

    def __init__(self, field: str, asked: StructuredOutputs, spelling: dict[str, str]) -> None:
        self.field, self.asked, self.spelling = field, asked, spelling


def demand(field: str, path: str | None = None, **values: Any) -> Structure:
    """Make a demand.

    Args:
        field: the client's parameter.
        path: the client's name of the demand itself; empty when it is the engine's.
        **values: of `StructuredOutputs`.

    Raises:
        ApiError: they can't be meant.
    """
    spelling = {"structured_outputs": field}
    if path != "":
        spelling |= {f"structured_outputs.{kind}": path or field for kind in values}
    try:
        return Structure(field, StructuredOutputs(**values), spelling)
    except RequestError as error:
        raise from_engine(error, spelling) from None
