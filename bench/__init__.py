"""Speed and memory, side by side with the raw floor: `make bench`, or `python -m bench [--short] [--json]`.

What any user can measure on any store is in `holdfast.bench`; here is what needs a server of our own or a long time.
"""
