"""langchain-openai: invoke, stream, batch, a schema, log-probabilities, the responses API."""

import os

from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

ADDRESS = f"{os.environ['JUDGED_ADDRESS']}/v1"
NAME = os.environ["JUDGED_MODEL"]


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=20)


def model(**more):
    return ChatOpenAI(
        model=NAME, base_url=ADDRESS, api_key="x", temperature=0, max_tokens=30, **more
    )


question = "What is the capital of France?"
answer = model().invoke(question)
assert "Paris" in answer.content, answer
assert answer.usage_metadata["output_tokens"] > 0
streamed = "".join(chunk.content for chunk in model().stream(question))
assert streamed == answer.content, (streamed, answer.content)
several = model().batch([question, "Say hello."])
assert several[0].content == answer.content
assert len(several) == 2
city = model().with_structured_output(City, method="json_schema").invoke("Name a city.")
assert isinstance(city, City), city
scored = model(logprobs=True, top_logprobs=2).invoke(question)
assert len(scored.response_metadata["logprobs"]["content"]) > 0
response = model(use_responses_api=True).invoke(question)
assert "Paris" in response.text, response
print("invoke, stream, batch, schema, log-probabilities, responses")
