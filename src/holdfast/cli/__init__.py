"""The command line: every command asks the same `Holdfast` object that applications use."""
