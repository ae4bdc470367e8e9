"""Tool calls `mistral`: an array, or names and arguments, after [TOOL_CALLS]."""

from engine.hookspecs import hookimpl
from engine.tool_parsers import ToolParserPlugin

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_tool_parser() -> type[ToolParserPlugin]:
    """Register the parser."""
    from engine_tools_mistral.parser import Mistral

    return Mistral
