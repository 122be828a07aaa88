"""Ways out: what a search found, where Triton, PyTorch and vLLM look for it."""
