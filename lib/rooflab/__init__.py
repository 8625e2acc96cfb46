"""rooflab: the helper package of the measured course in LLM inference kernels."""

__version__ = "0.1.0"
