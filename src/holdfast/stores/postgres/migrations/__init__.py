"""The schema, step by step; each file is applied once, in order."""
