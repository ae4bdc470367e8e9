"""Backend `openvino_ir`: a model's pieces in OpenVINO, kept between starts as its own IR."""

from engine.hookspecs import hookimpl
from engine.strategies import Backend

ENGINE_API_VERSION = 1


@hookimpl
def engine_register_backend() -> type[Backend]:
    """Register the backend."""
    from engine_openvino_backend.backend import OpenVinoBackend

    return OpenVinoBackend
