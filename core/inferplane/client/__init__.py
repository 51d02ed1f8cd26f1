"""The front end's half of a request: building it, following it, and assembling its text. Knows no HTTP."""
