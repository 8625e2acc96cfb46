"""A bare `pytest --nbval notebooks` replays the recordings, whatever machine it runs on."""

import os

os.environ["ROOFLAB_MODE"] = "replay"
