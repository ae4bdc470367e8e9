"""The command `llm` of Simon Willison: chat, stream, completion settings, a schema."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

ADDRESS = os.environ["JUDGED_ADDRESS"]
MODELS = f"""
- model_id: engine
  model_name: smollm2
  api_base: {ADDRESS}/v1
  supports_schema: true
"""


def ask(*arguments: str) -> str:
    done = subprocess.run(
        ["llm", "prompt", "-m", "engine", "--key", "x", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


with tempfile.TemporaryDirectory() as folder:
    os.environ["LLM_USER_PATH"] = folder
    model = os.environ["JUDGED_MODEL"]
    Path(folder, "extra-openai-models.yaml").write_text(MODELS.replace("smollm2", model))
    question = "What is the capital of France?"
    options = ["-o", "temperature", "0", "-o", "max_tokens", "20"]
    streamed = ask(*options, question)
    assert "Paris" in streamed, streamed
    assert ask("--no-stream", *options, question) == streamed
    found = json.loads(
        ask("--no-stream", "--schema", "name, age int", "-o", "max_tokens", "60", "Invent a person")
    )
    assert isinstance(found["name"], str), found
    assert isinstance(found["age"], int), found
print("chat, stream and schema")
