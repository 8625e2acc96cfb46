"""What a notebook shows: figures, tables, sources, explorers."""
