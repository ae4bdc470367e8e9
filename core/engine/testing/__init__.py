"""What tests of plugins are built from; nothing outside tests imports it."""
