"""The runtime: the loop that schedules, runs and samples, and what it is made of."""
