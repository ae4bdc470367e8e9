"""Grammar library `llguidance`: JSON schemas, regular expressions, choices, Lark and GBNF."""

from engine.grammars import GrammarPlugin
from engine.hookspecs import hookimpl

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_grammar() -> type[GrammarPlugin]:
    """Register the library."""
    from engine_grammar_llguidance.plugin import Llguidance

    return Llguidance
