"""nn.Module and functions → Program. `ingot.capture` is `trace` followed by the tracepoints pass."""

from ingot.frontend.trace import trace

__all__ = ["trace"]
