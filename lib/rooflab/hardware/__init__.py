"""What a GPU is, its measured and published ceilings, and bounds as plain arithmetic."""
