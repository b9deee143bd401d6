"""The schema, as steps that only go forward."""
