"""What running a model shows: numbers, times, memory, and what quantization loses."""
