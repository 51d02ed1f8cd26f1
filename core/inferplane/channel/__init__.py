"""How messages travel between front ends and engines; knows nothing about what they mean."""
