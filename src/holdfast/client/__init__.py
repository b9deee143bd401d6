"""What a program that only enqueues needs: registered kinds, prepared jobs, handles on stored jobs."""
