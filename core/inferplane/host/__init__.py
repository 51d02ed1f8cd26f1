"""Facts about the host and the hardware that is visible on it. Runs no plugin code and imports no torch."""
