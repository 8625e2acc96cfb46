"""An operand that no GPU holds, for what a launcher refuses before it launches."""

import numpy as np


class FakeArray:
    """Looks like a CuPy array of any size to the launch checks."""

    def __init__(self, shape=(1024,), dtype="float32", address=4096, contiguous=True):
        self.shape, self.dtype, self.size = shape, np.dtype(dtype), int(np.prod(shape, dtype=object))
        self.data = type("Data", (), {"ptr": address})()
        self.flags = type("Flags", (), {"c_contiguous": contiguous})()
