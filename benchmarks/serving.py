"""pagedlab's engine beside other engines on this machine's CPU: the same requests, the same model, in turns.

    python benchmarks/serving.py --engines all --json benchmarks/results/serving.json

Each engine lives in a process of its own. They are started one after the other and then take turns, run by run, so that
whatever slows the machine for a while slows all of them; ratios inside one round are what counts. Without `--engines`:
pagedlab and those peers that are installed already. `all` installs the missing ones first, each into an environment of
its own in the cache folder (4 GiB together; more where pip takes PyTorch's build for GPUs).

Of every set of requests (benchmarks/serving_workload.py) each engine first does one run that does not count. Then, in
every round, each does `--repeat` runs, in turns, with new words; the best counts. An engine that took more than three
times as long as the first one does a single run a round. Speeds are output tokens a second, for `prefill` prompt tokens
a second. `same` counts sequences of the first run of `mixed` that are, token by token, what transformers gives in
float32.
"""

import argparse
import datetime
import json
import os
import platform
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import psutil  # noqa: E402
import serving_workload  # noqa: E402
from peers import environments, model_files, reference, settings  # noqa: E402
from peers.child import Engine, PeerFailedError, wait_until_quiet  # noqa: E402

from pagedlab.model import fetch, gguf_llama, tokenizer  # noqa: E402
from pagedlab.model.gguf_file import GGUFFile  # noqa: E402
from pagedlab.paths import cache_dir, write_atomic  # noqa: E402


class Bench:
    """What all runs share: the model, the requests, the options. Engines are started by name."""

    def __init__(self, options):
        file = GGUFFile(fetch.fetch())
        self.options, self.config = options, gguf_llama.read_config(file)
        self.encode = tokenizer.from_gguf(file).encode
        self.files = {"directory": str(model_files.hugging_face_directory()), "gguf": str(model_files.float16_gguf())}

    def requests(self, workload: str, repetition: int):
        return serving_workload.make(workload, self.encode, repetition, self.options.requests)

    def start(self, name: str, dtype: str) -> Engine:
        """PeerNotInstalledError, PeerFailedError."""
        environment = settings.ENGINES[name]
        python = Path(sys.executable) if environment is None else environments.install(environment)
        if note := settings.missing_helpers(name):
            print(note)
        first = self.encode("The capital of France is")
        chosen = settings.settings(name, dtype, self.options.threads, self.config, first, **self.files)
        log = cache_dir() / "benchmarks" / "logs" / f"{name}-{dtype}.log"
        engine = Engine(name, python, chosen.options, chosen.environment, log)
        print(f"{name}, {dtype}: first token after {engine.start_seconds:.1f} s", flush=True)
        return engine

    def reference(self, workload: str):
        """Outputs of repetition 0 by transformers in float32; None if that is not installed, and not asked for."""
        requests, wanted = self.requests(workload, 0), [settings.ENGINES[name] for name in self.options.engines]
        if not (self.options.exact or "transformers" in wanted or environments.is_installed("transformers")):
            return None
        try:
            return reference.outputs(workload, requests, lambda: self.start("transformers-static", "float32"))
        except (environments.PeerNotInstalledError, PeerFailedError) as error:
            print(f"no reference: {error}")
            return None


def speed(workload: str, requests, seconds: float) -> float:
    """Tokens a second: prompt tokens for `prefill`, else output tokens."""
    if workload == "prefill":
        return sum(len(request.prompt_ids) for request in requests) / seconds
    return sum(request.max_tokens for request in requests) / seconds


def measure(bench: Bench, dtype: str) -> dict:
    """All engines, all workloads, in turns. `{engine: {start_seconds, peak_mib, versions, workloads: {...}}}`."""
    options, engines, results = bench.options, {}, {}
    expected = bench.reference("mixed") if "mixed" in options.workloads else None
    try:
        for name in options.engines:
            try:
                engine = engines[name] = bench.start(name, dtype)
            except (environments.PeerNotInstalledError, PeerFailedError) as error:
                print(f"left out: {error}", flush=True)
                continue
            results[name] = {"start_seconds": engine.start_seconds, "versions": engine.versions, "workloads": {}}
        for workload in options.workloads:
            _take_turns(bench, engines, results, workload, dtype)
            same = _same(results, expected) if workload == "mixed" else {}
            for name, count in same.items():
                results[name]["same"] = [count, len(expected)]
    finally:
        for engine in engines.values():
            engine.stop()
    for name, engine in engines.items():
        results[name]["peak_mib"] = engine.peak_bytes / 2**20
        for record in results[name]["workloads"].values():
            del record["outputs"]
    return results


def _take_turns(bench: Bench, engines: dict, results: dict, workload: str, dtype: str) -> None:
    """Fills `results[engine]["workloads"][workload]`. An engine that fails is stopped and has no more turns."""
    options = bench.options
    records = {
        name: {"rounds": [[] for _ in range(options.rounds)], "cpu_seconds": [], "foreign_shares": [], "outputs": []}
        for name, engine in engines.items()
        if not engine.stopped
    }

    def run(name, repetition):
        if options.wait:
            wait_until_quiet(options.wait)
        requests = bench.requests(workload, repetition)
        try:
            outcome = engines[name].run(requests)
        except PeerFailedError as error:
            print(f"left out from here on: {error}", flush=True)
            engines[name].stop()
            return None
        tokens_a_second = speed(workload, requests, outcome.seconds)
        label = f"{dtype} {workload} {'warm-up' if repetition == 0 else repetition}"
        print(
            f"{label:<24} {name:<20} {tokens_a_second:>8.1f} tokens/s {outcome.seconds:>7.2f} s"
            f", {outcome.cpu_seconds:>7.2f} s of processors; others used {outcome.foreign_share:>4.0%}",
            flush=True,
        )
        if repetition == 0:
            records[name]["outputs"], records[name]["warm_up_seconds"] = outcome.outputs, outcome.seconds
        else:
            records[name]["rounds"][(repetition - 1) // options.repeat].append(tokens_a_second)
            records[name]["cpu_seconds"].append(outcome.cpu_seconds)
            records[name]["foreign_shares"].append(outcome.foreign_share)

    for name in records:
        results[name]["workloads"][workload] = records[name]
        run(name, 0)
    slow = 3 * records[next(iter(records))].get("warm_up_seconds", float("inf")) if records else 0
    for repetition in range(1, options.rounds * options.repeat + 1):
        first_turn = (repetition - 1) % options.repeat == 0
        for name, record in records.items():
            if not engines[name].stopped and (first_turn or record["warm_up_seconds"] <= slow):
                run(name, repetition)


def _same(results: dict, expected: list | None) -> dict[str, int]:
    """How many sequences of each engine's first run of `mixed` are the reference's."""
    if expected is None:
        return {}
    outputs = {name: result["workloads"].get("mixed", {}).get("outputs") for name, result in results.items()}
    return {name: sum(a == b for a, b in zip(found, expected, strict=True)) for name, found in outputs.items() if found}


def ratios(ours: dict, peer: dict, workload: str) -> list[float]:
    """Ours to the peer's, the best run of each, one ratio a round."""
    pairs = zip(ours["workloads"][workload]["rounds"], peer["workloads"][workload]["rounds"], strict=True)
    return [max(a) / max(b) for a, b in pairs if a and b]


def speed_table(results: dict, workloads: list[str], dtype: str) -> str:
    """Markdown: the best speed of each engine, and start, memory and exactness."""
    lines = [
        f"| {dtype}, tokens/s | {' | '.join(workloads)} | start, s | peak, GiB | same |",
        "|---" * (len(workloads) + 4) + "|",
    ]
    for name, result in results.items():
        cells = []
        for workload in workloads:
            runs = sum(result["workloads"].get(workload, {}).get("rounds", []), [])
            cells.append(f"{max(runs):,.0f}" if runs else "-")
        same = result.get("same")
        cells += [f"{result['start_seconds']:.1f}", f"{result['peak_mib'] / 1024:.2f}"]
        cells.append(f"{same[0]}/{same[1]}" if same else "-")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def ratio_table(results: dict, workloads: list[str], dtype: str) -> str:
    """Markdown: the first engine's speed divided by each other's, lowest to highest of the rounds."""
    ours = next(iter(results))
    lines = [f"| {dtype}, {ours} to | {' | '.join(workloads)} |", "|---" * (len(workloads) + 1) + "|"]
    for name in list(results)[1:]:
        cells = []
        for workload in workloads:
            found = ratios(results[ours], results[name], workload)
            cells.append(f"{min(found):.2f}x to {max(found):.2f}x" if found else "-")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def machine() -> dict:
    import torch

    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def default_engines() -> list[str]:
    return [name for name, place in settings.ENGINES.items() if place is None or environments.is_installed(place)]


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", help=f"'all', or some of {','.join(settings.ENGINES)}")
    parser.add_argument("--workloads", default="mixed,single,prefix,decode,prefill", help="some of these, by commas")
    parser.add_argument("--dtype", default="bfloat16,float32", help="one or both of these")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each engine a round; the best counts")
    parser.add_argument("--rounds", type=int, default=2, help="rounds; each gives one ratio")
    parser.add_argument("--requests", type=int, help="only so many requests of each set (for a quick try)")
    parser.add_argument("--threads", type=int, default=machine()["cores"], help="of every engine; default: all cores")
    parser.add_argument("--wait", type=float, default=0, help="seconds to wait for a quiet machine before each run")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--start", action="store_true", help="only start and peak memory, each engine twice")
    parser.add_argument("--exact", action="store_true", help="only: is pagedlab's float32 output that of transformers?")
    parser.add_argument("--overhead", action="store_true", help="only: what share of a step is not the model")
    options = parser.parse_args(arguments)

    def chosen(text, known, what):
        names = list(known) if text == "all" else [name.strip() for name in text.split(",")]
        if unknown := [name for name in names if name not in known]:
            parser.error(f"no {what} {unknown[0]!r}: there are {', '.join(known)}")
        return list(dict.fromkeys(names))

    options.engines = chosen(options.engines, settings.ENGINES, "engine") if options.engines else default_engines()
    options.workloads = chosen(options.workloads, serving_workload.WORKLOADS, "workload")
    options.dtypes = chosen(options.dtype, ("bfloat16", "float32"), "dtype")
    if min(options.repeat, options.rounds, options.threads, options.requests or 1) < 1:
        parser.error("--repeat, --rounds, --requests and --threads must be at least 1")
    return options


def measure_starts(bench: Bench) -> dict:
    """Each engine started twice (the second finds compiled code and the file cache warm), then one run of `mixed`."""
    results = {}
    for dtype in bench.options.dtypes:
        rows = [f"\n| {dtype} | first start, s | second start, s | peak after mixed, GiB |", "|---|---|---|---|"]
        for name in bench.options.engines:
            seconds = []
            try:
                for last in (False, True):
                    engine = bench.start(name, dtype)
                    seconds.append(engine.start_seconds)
                    try:
                        if last:
                            engine.run(bench.requests("mixed", 0))
                    finally:
                        engine.stop()
            except (environments.PeerNotInstalledError, PeerFailedError) as error:
                print(f"left out: {error}", flush=True)
                continue
            gib = engine.peak_bytes / 2**30
            results.setdefault(dtype, {})[name] = {"start_seconds": seconds, "peak_mib": gib * 1024}
            rows.append(f"| {name} | {seconds[0]:.1f} | {seconds[1]:.1f} | {gib:.2f} |")
        print("\n".join(rows), flush=True)
    return results


def main():
    options = parse()
    here = machine()
    print(f"{here['processor']}, {options.threads} threads, {here['instructions']}, {here['memory_gib']} GiB; ", end="")
    print(f"load average {os.getloadavg()[0]:.1f}", flush=True)
    bench, report = Bench(options), {"machine": here, "date": datetime.date.today().isoformat(), "results": {}}
    report["settings"] = {
        "threads": options.threads,
        "cache_tokens": settings.CACHE_TOKENS,
        "repeat": options.repeat,
        "rounds": options.rounds,
    }
    began = time.perf_counter()
    if options.exact or options.overhead:
        from peers import exact, overhead

        if options.exact:
            report["results"]["exact"] = exact.check(bench)
        if options.overhead:
            report["results"]["overhead"] = overhead.check(bench)
    elif options.start:
        report["results"]["start"] = measure_starts(bench)
    else:
        for dtype in options.dtypes:
            report["results"][dtype] = results = measure(bench, dtype)
            for table in (speed_table, ratio_table):
                print(f"\n{table(results, options.workloads, dtype)}", flush=True)
    print(f"\n{time.perf_counter() - began:.0f} s in all")
    if options.json:
        write_atomic(options.json, (json.dumps(report, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
