"""Which of PyTorch's tests of torch.export compare torch's own text, names or configuration, and what each compares."""

from __future__ import annotations

REASONS: dict[str, str] = {}
