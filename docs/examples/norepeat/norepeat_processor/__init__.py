"""A logits processor that lets no n-gram of tokens appear twice."""
