"""What this package offers; read without torch."""

from inferplane_api.spec import LogitsProcessorSpec, ProcessorParameter

PROCESSOR = LogitsProcessorSpec(
    id="norepeat.ngram",
    load="norepeat_processor.processor:NoRepeatedNgrams",
    parameters=(
        ProcessorParameter(
            name="no_repeat_ngram_size",
            type="int",
            minimum=1,
            maximum=64,
            doc="Tokens of an n-gram; none of this size appears twice in prompt and answer.",
        ),
    ),
)
