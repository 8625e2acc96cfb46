"""A wrong result is told with the rows and columns that are wrong."""

import numpy as np
import pytest
from rooflab.exercises import wrong

CASES = [
    (np.s_[:, :], "all 48 elements are wrong"),
    (np.s_[2, 3], "the only wrong element"),
    (np.s_[3:, :], "24 of 48 elements are wrong, from row 3 on, in every column"),
    (np.s_[1:3, 4:], "8 of 48 elements are wrong, in rows 1 to 2, from column 4 on"),
    (np.s_[:5, :], "40 of 48 elements are wrong, in every row but 5, in every column"),
    (np.s_[::2, :1], "3 of 48 elements are wrong, in rows 0, 2, ... 4, in column 0 alone"),
    (np.s_[[0, 1, 4], 2:4], "6 of 48 elements are wrong, in 3 of 6 rows, in columns 2 to 3"),
]


@pytest.mark.parametrize(("where", "says"), CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_where_a_table_is_wrong(where, says, dtype):
    right = np.arange(48, dtype=dtype).reshape(6, 8)
    got = right.copy()
    assert wrong.told("y", got, right, 0.0) == ""
    got[where] += 1
    assert wrong.told("y", got, right, 0.0).endswith(f" is right; {says}")
    assert wrong.told("y", got.reshape(2, 3, 8), right, 0.0).endswith(f" is right; {says}")
    assert wrong.told("y", got, right, 1.0) == ""


def test_what_was_not_written_is_told_from_a_nan_that_was_computed():
    right = np.arange(6, dtype=np.float32)
    got = right.copy()
    got[4:].view(np.uint8)[:] = 0xFF
    assert wrong.told("y", got, right, 0.1) == (
        "y[4] was not written, and 4 is right; 2 of 6 elements are wrong, from element 4 on"
    )
    got[1] = np.inf * 0
    assert wrong.told("y", got, right, 0.1).startswith("y[1] is nan, and 1 is right; 3 of 6 ")
    assert wrong.told("y", np.full(1, 2.5, np.float32), np.zeros(1), 0.1) == (
        "y[0] is 2.5, and 0 is right; the only element"
    )
