"""One vLLM engine: its arguments, requests and weights."""
