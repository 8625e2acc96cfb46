"""Compiling CUDA C++ with NVRTC, loading and launching it."""
