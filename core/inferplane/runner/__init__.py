"""Executes step plans in the engine process: batch state, KV memory, model, sampling. Importing it imports no torch."""
