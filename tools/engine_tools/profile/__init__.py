"""Where the time of a step goes: a trace of a few steps, and what it adds up to."""
