"""litellm: its two providers for such servers, streams, and how it reads our errors."""

import json
import os

# Read when it is imported: it would ask the network for prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

ADDRESS = f"{os.environ['JUDGED_ADDRESS']}/v1"
NAME = os.environ["JUDGED_MODEL"]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def ask(provider, **more):
    return litellm.completion(
        model=f"{provider}/{NAME}",
        messages=QUESTION,
        api_base=ADDRESS,
        api_key="x",
        temperature=0,
        **{"max_tokens": 20, **more},
    )


for provider in ("openai", "hosted_vllm"):
    whole = ask(provider)
    text = whole.choices[0].message.content
    assert "Paris" in text, text
    assert whole.usage.completion_tokens > 0
    chunks = list(ask(provider, stream=True, stream_options={"include_usage": True}))
    joined = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert joined == text, (joined, text)
    try:
        litellm.completion(
            model=f"{provider}/no-such-model", messages=QUESTION, api_base=ADDRESS, api_key="x"
        )
    except litellm.NotFoundError:
        pass
    else:
        raise AssertionError("an unknown model was answered")
    try:
        litellm.completion(
            model=f"{provider}/{NAME}",
            messages=[{"role": "user", "content": "word " * 20000}],
            api_base=ADDRESS,
            api_key="x",
        )
    except litellm.ContextWindowExceededError:
        pass
    else:
        raise AssertionError("a prompt beyond the context was answered")
    made = ask(
        provider,
        max_tokens=80,
        response_format={
            "type": "json_schema",
            "json_schema": {
                "name": "city",
                "strict": True,
                "schema": {
                    "type": "object",
                    "properties": {"city": {"type": "string", "maxLength": 20}},
                    "required": ["city"],
                    "additionalProperties": False,
                },
            },
        },
    )
    assert isinstance(json.loads(made.choices[0].message.content)["city"], str)
print("both providers; errors become NotFoundError and ContextWindowExceededError")
