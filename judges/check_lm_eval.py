"""lm-eval with `local-completions`: log-likelihoods by echo, and generation, on our own task."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ADDRESS = f"{os.environ['JUDGED_ADDRESS']}/v1"
NAME = os.environ["JUDGED_MODEL"]
CHOICE = """
task: capitals
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/capitals.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "The capital of {{country}} is"
doc_to_choice: ["Paris", "Berlin", "Rome"]
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}]
"""
GENERATION = """
task: capital_text
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/capitals.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "The capital of {{country}} is"
doc_to_target: "{{city}}"
generation_kwargs: {until: ["."], max_gen_toks: 12, temperature: 0}
filter_list:
  - name: first
    filter:
      - {function: regex, regex_pattern: "(Paris|Berlin|Rome)"}
      - {function: take_first}
metric_list: [{metric: exact_match}]
"""
ROWS = [("France", "Paris"), ("Germany", "Berlin"), ("Italy", "Rome")]

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    lines = [{"country": c, "city": city, "answer": i} for i, (c, city) in enumerate(ROWS)]
    (folder / "capitals.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for task, text in (("capitals", CHOICE), ("capital_text", GENERATION)):
        (folder / f"{task}.yaml").write_text(text.replace("FOLDER", name))
    arguments = f"model={NAME},base_url={ADDRESS}/completions,num_concurrent=2,max_retries=1"
    # The server itself says how text is cut into tokens.
    arguments += ",tokenizer_backend=remote"
    command = [sys.executable, "-m", "lm_eval", "--model", "local-completions"]
    command += ["--model_args", arguments, "--tasks", "capitals,capital_text"]
    command += ["--include_path", name, "--output_path", f"{name}/out"]
    environment = {**os.environ, "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {"OPENAI_API_KEY": "x", "HF_HOME": f"{name}/hf"}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout[-3000:], done.stderr[-6000:], file=sys.stderr)
        sys.exit(1)
    [result] = (folder / "out").rglob("results*.json")
    scores = json.loads(result.read_text())["results"]
    chosen = scores["capitals"]["acc,none"]
    written = scores["capital_text"]["exact_match,first"]
    assert chosen == written == 1.0, scores
print("three of three by log-likelihood and by generation")
