"""The rules, pure: states, moves, retries, payload limits and the seeds' vocabularies. No I/O, clock or randomness."""
