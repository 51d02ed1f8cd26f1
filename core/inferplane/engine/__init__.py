"""The engine: scheduling, the paged cache and the step loop. Torch-free; it drives a runner through its protocol."""
