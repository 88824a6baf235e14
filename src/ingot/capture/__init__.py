"""nn.Module and functions → Program. `ingot.capture` is `trace` followed by the tracepoints pass."""

from ingot.capture.front import trace

__all__ = ["trace"]
