"""Tool calls `hermes`: objects between <tool_call> tags, as Hermes and Qwen write them."""

from engine.hookspecs import hookimpl
from engine.tool_parsers import ToolParserPlugin

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_tool_parser() -> type[ToolParserPlugin]:
    """Register the parser."""
    from engine_tools_hermes.parser import Hermes

    return Hermes
