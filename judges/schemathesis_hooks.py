"""Keeps answers short: a request that says nothing of its length takes the whole context."""

import schemathesis


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.path.endswith("/responses") and isinstance(case.body, dict):
        case.body.setdefault("max_output_tokens", 16)
