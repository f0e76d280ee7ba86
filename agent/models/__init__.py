"""Models: the protocol, OpenAI-compatible endpoints, scripted ones for tests, and inference with any of them."""
