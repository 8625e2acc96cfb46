"""Running, checking and rendering the series of notebooks."""
