"""Speed and memory, side by side with the raw floor: `make bench`, or `python -m bench [--short] [--json]`."""
