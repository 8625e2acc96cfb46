"""What a test cannot do without: it is skipped by name, and not forgiven where ROOFLAB_REQUIRE_ALL is set."""

import pytest
from rooflab import simt
from rooflab.errors import MissingTool


def compiler():
    """Skip the test, or the module that is being collected, where there is no C++ compiler."""
    try:
        simt.build.compiler()
    except MissingTool as error:
        pytest.skip(str(error), allow_module_level=True)
