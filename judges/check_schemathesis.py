"""schemathesis: requests that it makes from the OpenAPI page."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

command = ["st", "run", f"{os.environ['JUDGED_ADDRESS']}/openapi.json", "--max-examples", "10"]
command += ["--checks", "not_a_server_error,content_type_conformance", "--workers", "2"]
command += ["--request-timeout", "120", "--seed", "1", "--phases", "examples,coverage,fuzzing"]
hooks = {"SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": str(Path(__file__).parent)}
# It leaves what it found where it runs.
with tempfile.TemporaryDirectory() as folder:
    done = subprocess.run(
        command,
        check=False,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, **hooks},
    )
if done.returncode:
    print(done.stdout[-6000:])
else:
    print("no 5xx, and every answer of a promised type")
sys.exit(done.returncode)
