"""The built-in page: one static file, and the route that serves it under a strict policy."""
