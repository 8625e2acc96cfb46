"""What lessons compute from recorded rows. Nothing here measures; nothing in rooflab.studies imports it."""
