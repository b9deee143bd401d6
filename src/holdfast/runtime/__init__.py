"""What a worker process is made of: claim, run, settle, heartbeat, upkeep."""
