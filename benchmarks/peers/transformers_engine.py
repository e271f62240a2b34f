"""transformers, in two ways: padded batches that start and end together, and its own continuous batching on pages."""


def load_static(options: dict):
    """One batch of everything: padded on the left to the longest prompt, run until the longest answer is done."""
    import torch

    model = _model(options)
    pad = model.config.pad_token_id

    def generate(prompts, max_tokens):
        width = max(len(prompt) for prompt in prompts)
        padding = [width - len(prompt) for prompt in prompts]
        ids = [[pad] * num + prompt for num, prompt in zip(padding, prompts, strict=True)]
        mask = [[0] * num + [1] * (width - num) for num in padding]
        with torch.inference_mode():
            output = model.generate(
                input_ids=torch.tensor(ids),
                attention_mask=torch.tensor(mask),
                max_new_tokens=max(max_tokens),
                do_sample=False,
                pad_token_id=pad,
            )
        return [row[width : width + count].tolist() for row, count in zip(output, max_tokens, strict=True)]

    return generate


def load_continuous(options: dict):
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model = _model(options)
    model.set_attn_implementation("sdpa")
    page = 32
    config = ContinuousBatchingConfig(
        page_size=page,
        num_blocks=options["cache_tokens"] // page,
        max_batch_tokens=options["max_num_batched_tokens"],
        use_cuda_graph=False,
        default_compile_level=0,
    )
    greedy = GenerationConfig(
        do_sample=False, eos_token_id=-1, pad_token_id=model.config.pad_token_id, max_new_tokens=2048
    )

    def generate(prompts, max_tokens):
        manager = model.init_continuous_batching(generation_config=greedy, continuous_batching_config=config)
        manager.start()
        try:
            order = [
                manager.add_request(prompt, max_new_tokens=count, eos_token_id=-1)
                for prompt, count in zip(prompts, max_tokens, strict=True)
            ]
            done = {}
            while len(done) < len(order):
                result = manager.get_result(timeout=1)
                if result is None and not manager.is_running():
                    raise RuntimeError("the continuous batching thread ended")
                if result is not None and result.is_finished():
                    if result.error:
                        raise RuntimeError(result.error)
                    done[result.request_id] = list(result.generated_tokens)
        finally:
            manager.stop(block=True)
        return [done[request] for request in order]

    return generate


def _model(options: dict):
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(options["threads"])
    model = AutoModelForCausalLM.from_pretrained(options["directory"], dtype=getattr(torch, options["dtype"])).eval()
    model.generation_config.eos_token_id = None  # the number of tokens is fixed
    return model
