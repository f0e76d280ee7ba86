"""Models: the protocol, OpenAI-compatible endpoints, scripted ones for tests, and inference with any of them.

Start at `model.py`. Imports agent layers below 8.
"""
