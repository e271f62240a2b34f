"""pagedlab's own engine, as the serving benchmark runs it."""


def load(options: dict):
    import torch

    from pagedlab.engine.engine import Engine

    torch.set_num_threads(options["threads"])
    engine = Engine.load(
        dtype=getattr(torch, options["dtype"]),
        kv_cache_memory=options["cache_bytes"],
        max_num_seqs=options["max_num_seqs"],
        max_num_batched_tokens=options["max_num_batched_tokens"],
    )
    return serve(engine)


def serve(engine):
    """`generate(prompts, max_tokens) -> new ids of each`, on an engine that is there already."""
    from pagedlab.engine.params import SamplingParams

    def generate(prompts, max_tokens):
        params = [SamplingParams(max_tokens=count, ignore_eos=True) for count in max_tokens]
        outputs = engine.generate(prompts, params, progress=False)
        return [list(output.token_ids) for output in outputs]

    return generate
