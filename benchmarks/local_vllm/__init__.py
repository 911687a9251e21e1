"""A real vLLM server with a real, small language model, on this machine's processor.

``make vllm`` sets up what it needs, in a virtual environment of its own.
"""

from benchmarks.local_vllm.server import MODEL_NAME, LocalVllm

__all__ = ["MODEL_NAME", "LocalVllm"]
