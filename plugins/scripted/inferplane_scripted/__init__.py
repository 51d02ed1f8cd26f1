"""Test doubles for everything above a device: a platform that plays a script, and a model made of a table."""
