"""Compiled kernels behind a C interface: how to call, record and replay them. Nothing else knows the library."""
