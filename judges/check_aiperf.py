"""aiperf: a short load of streams; its own count of tokens beside the server's."""

import os
import subprocess
import sys
import tempfile

import httpx

ADDRESS = os.environ["ENGINE_ADDRESS"]
NAME = httpx.get(f"{ADDRESS}/v1/models").json()["data"][0]["id"]

with tempfile.TemporaryDirectory() as folder:
    command = ["aiperf", "profile", "--model", NAME, "--url", ADDRESS, "--endpoint-type", "chat"]
    command += ["--streaming", "--concurrency", "4", "--request-count", "12"]
    command += ["--synthetic-input-tokens-mean", "32", "--output-tokens-mean", "16"]
    command += ["--tokenizer", os.environ.get("ENGINE_TOKENIZER", "builtin"), "--ui", "none"]
    command += ["--artifact-dir", folder]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout[-3000:], done.stderr[-3000:], file=sys.stderr)
        sys.exit(1)
print("12 streams, none failed")
