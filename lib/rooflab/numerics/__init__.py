"""Number formats, exact references, checkpoint files and the shapes of models. Needs no GPU."""
