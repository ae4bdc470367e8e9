"""Tool calls `llama3_json`: an object in place of the answer, as Llama 3 writes it."""

from engine.hookspecs import hookimpl
from engine.tool_parsers import ToolParserPlugin

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_tool_parser() -> type[ToolParserPlugin]:
    """Register the parser."""
    from engine_tools_llama3_json.parser import Llama3Json

    return Llama3Json
