"""The reference platform and its parts: slow, right, and always there. Registered like any plugin."""
