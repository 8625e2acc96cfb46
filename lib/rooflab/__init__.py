"""rooflab: the helper package of the measured course in LLM inference kernels."""

__version__ = "1.0.0"
