"""Backend `eager`: runs the FX graph node by node."""

from engine.hookspecs import hookimpl
from engine.strategies import Backend

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_backend() -> type[Backend]:
    """Register the backend."""
    from engine_backend_eager.backend import EagerBackend

    return EagerBackend
