"""Recorded rows: their schema, their tables, the store, fingerprints, and what judges a recording."""
