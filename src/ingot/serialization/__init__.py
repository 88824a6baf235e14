"""Programs as JSON and safetensors: the Program half of a .ingot file."""
