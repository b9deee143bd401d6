"""Speed and memory, measured side by side with the raw floor in one run: `make bench`, or `python -m bench [--short] [--json]`."""
