"""Speed and memory, side by side with the raw floor in one run: `make bench` or `python -m bench [--short] [--json]`."""
