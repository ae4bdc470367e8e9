"""Family `dynamo`: every backend registered with torch.compile, by its own name."""

from engine.families import PluginFamily
from engine.hookspecs import hookimpl

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_family() -> type[PluginFamily]:
    """Register the family."""
    from engine_family_dynamo.family import DynamoFamily

    return DynamoFamily
