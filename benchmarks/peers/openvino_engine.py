"""OpenVINO GenAI's continuous batching, from the GGUF with float16 matrices.

With "bfloat16" it picks its precisions by itself, as its users get them; with "float32" it computes and caches in
float32. Its blocks hold 32 tokens.
"""


def load(options: dict):
    import numpy
    import openvino
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks = options["cache_tokens"] // 32
    scheduler.max_num_seqs = options["max_num_seqs"]
    scheduler.max_num_batched_tokens = options["max_num_batched_tokens"]
    scheduler.enable_prefix_caching = True
    properties = {"INFERENCE_NUM_THREADS": options["threads"]}
    if options["dtype"] == "float32":
        properties |= {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    pipeline = genai.ContinuousBatchingPipeline(options["gguf"], scheduler, "CPU", properties)

    def generate(prompts, max_tokens):
        configs = []
        for count in max_tokens:
            config = genai.GenerationConfig()
            config.max_new_tokens, config.do_sample, config.ignore_eos = count, False, True
            configs.append(config)
        inputs = [openvino.Tensor(numpy.array([prompt], dtype=numpy.int64)) for prompt in prompts]
        return [list(result.m_generation_ids[0]) for result in pipeline.generate(inputs, configs)]

    return generate
