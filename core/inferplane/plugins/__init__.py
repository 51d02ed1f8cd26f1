"""Which plugins are installed, usable and present: metadata, child processes, probes. Imports no plugin here."""
