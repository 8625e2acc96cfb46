"""The gate that admits a kernel, the clocks that time it, and the meter of power and clock rate beside
them.
"""
