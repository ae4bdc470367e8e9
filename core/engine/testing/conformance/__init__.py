"""The conformance kit: what the contract asks of each kind of plugin, as checks.

Import the suites from `engine.testing`; nothing is imported here, so that pytest starts quickly.
"""
