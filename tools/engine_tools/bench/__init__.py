"""Measures engines and servers: starts, latency, throughput, load, and every combination of modes.

Nothing is imported here, so that a command can check its flags before torch is loaded.
"""
