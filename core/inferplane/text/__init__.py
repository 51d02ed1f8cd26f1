"""Between text and token ids: tokenizer, detokenizer, stop strings, chat templates, sampling defaults; no tensors."""
