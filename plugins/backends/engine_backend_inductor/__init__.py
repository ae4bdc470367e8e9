"""Backend `inductor`: PyTorch's own compiler."""

from engine.hookspecs import hookimpl
from engine.strategies import Backend

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_backend() -> type[Backend]:
    """Register the backend."""
    from engine_backend_inductor.backend import InductorBackend

    return InductorBackend
