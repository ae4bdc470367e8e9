"""What proves and measures an engine from outside: verify, bisect, bench, doctor, profile."""
