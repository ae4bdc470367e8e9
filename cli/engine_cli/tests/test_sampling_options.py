"""Every field of `SamplingParams` is an option with its documentation and default."""

from __future__ import annotations

import random
from typing import Any

import click
import msgspec
import pytest

from engine.sampling_params import SamplingParams
from engine_cli.sampling_options import (
    WITHOUT_FLAG,
    SamplingOption,
    sampling_options,
    take_sampling_params,
)

FIELDS = {
    field.name: field
    for field in msgspec.structs.fields(SamplingParams)
    if field.name not in WITHOUT_FLAG
}
OPTIONS = {option.field_name: option for option in sampling_options()}


def parse(*arguments: str, **defaults: Any) -> SamplingParams:
    seen: list[SamplingParams] = []

    @click.pass_context
    def remember(context: click.Context, /, **_: Any) -> None:
        seen.append(take_sampling_params(context, **defaults))

    command = click.Command("probe", params=list(sampling_options(**defaults)), callback=remember)
    command.main(list(arguments), standalone_mode=False)
    return seen[0]


def example(name: str) -> tuple[list[str], Any]:
    """Text for the option, and the value that it means."""
    number = random.randrange(2, 9)
    special: dict[str, tuple[list[str], Any]] = {
        "max_tokens": (["none"], None),
        "logit_bias": ([f"{number}=-1.5", "1=2"], {number: -1.5, 1: 2.0}),
        "stop": (["a b", "c"], ["a b", "c"]),
        "stop_token_ids": (["3", str(number)], [3, number]),
        "min_tokens": ([str(number)], number),
        "top_k": (["-1"], -1),
    }
    if name in special:
        return special[name]
    kind = str(FIELDS[name].type)
    return ([str(number)], number) if "int" in kind else (["0.5"], 0.5)


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_an_option(name: str) -> None:
    option = OPTIONS[name]
    if option.secondary_opts:
        for flags, wanted in ((option.opts, True), (option.secondary_opts, False)):
            assert getattr(parse(flags[0]), name) is wanted
        return
    texts, wanted = example(name)
    arguments = [part for text in texts for part in (option.opts[0], text)]
    assert getattr(parse(*arguments), name) == wanted


def test_nothing_said_is_the_default_of_the_field_or_of_the_command() -> None:
    assert parse() == SamplingParams()
    assert parse(max_tokens=None) == SamplingParams(max_tokens=None)
    assert parse("--max-tokens", "5", max_tokens=None) == SamplingParams(max_tokens=5)


@pytest.mark.parametrize("name", FIELDS)
def test_help_is_the_documentation_of_the_field_with_its_default(name: str) -> None:
    context = click.Context(click.Command("probe"))
    flags, text = OPTIONS[name].get_help_record(context)
    assert flags.startswith("--")
    first_words = text.split()[:3]
    assert " ".join(first_words).lower() in " ".join((SamplingParams.__doc__ or "").lower().split())
    default = FIELDS[name].default
    if isinstance(default, int | float) and not isinstance(default, bool):
        assert f"[default: {default}]" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--n", "0"], "--n=0: must be from 1 to 128"),
        (["--temperature", "-1"], "--temperature=-1.0: must be from 0 to 100"),
        (["--top-p", "0"], "--top-p=0.0: must be more than 0"),
        (["--request-seed", str(2**70)], "--request-seed="),
        (["--min-tokens", "20"], "--min-tokens=20: must be at most max_tokens"),
        (["--max-tokens", "x"], "not a valid integer"),
        (["--temperature", "warm"], "not a valid float"),
        (["--logit-bias", "5"], "must be TOKEN_ID=NUMBER"),
        (["--logit-bias", "x=1"], "must be TOKEN_ID=NUMBER"),
        (["--stop", ""], "--stop="),
        (["--temperature", "nan"], "must be a finite number"),
    ],
)
def test_a_value_out_of_range_is_named_with_what_is_allowed(
    arguments: list[str], says: str
) -> None:
    with pytest.raises(click.UsageError) as error:
        parse(*arguments)
    assert says in error.value.format_message()


def test_a_command_may_leave_fields_out() -> None:
    names = {option.field_name for option in sampling_options(without=("n",))}
    assert names == FIELDS.keys() - {"n"}
    assert all(isinstance(option, SamplingOption) for option in OPTIONS.values())
