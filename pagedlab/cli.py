"""The `pagedlab` command. Each verb loads only what it needs, so that `--help` answers at once."""

import argparse
import codecs
import os
import sys

from pagedlab import __version__
from pagedlab.errors import PagedLabError

INTERRUPTED = 130  # what a shell reports after Ctrl-C

# For a terminal without these signs: `pagedlab progress` must still tell what is done from what is not.
PLAIN_SIGNS = {"\u2713": "x", "\u25cb": "-", "\u2717": "!", "\u00b7": "-", "\u2192": "->", "\u2026": "..."}


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns 0 if it worked, 1 if there is a problem to solve, 2 for a wrong command line."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.run is None:
        parser.print_help()
        return 2
    if hasattr(sys.stdout, "reconfigure"):
        codecs.register_error("plain-signs", _plain_signs)
        sys.stdout.reconfigure(errors="plain-signs")
    try:
        status = args.run(args) or 0
        _flush()
        return status
    except PagedLabError as error:
        print(f"pagedlab: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader has gone, as in `pagedlab progress | head -1`
        _print_nowhere()
        return 1
    except OSError as error:  # a full disk, say, or a folder that cannot be written to
        try:
            _flush()
        except OSError:
            _print_nowhere()
        print(f"pagedlab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED


def _flush() -> None:
    if sys.stdout is not None:  # None where a shell has closed it: `pagedlab progress >&-`
        sys.stdout.flush()


def _print_nowhere() -> None:
    """Let go of what could not be printed, or Python would try again, and complain, when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _plain_signs(error: UnicodeEncodeError) -> tuple[str, int]:
    return "".join(PLAIN_SIGNS.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pagedlab",
        description="Build PagedAttention yourself: an interactive notebook course.",
        epilog="Start with 'pagedlab lab'. Your work is in ~/pagedlab, or in PAGEDLAB_HOME if that is set.",
    )
    parser.add_argument("--version", action="version", version=f"pagedlab {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    lab = _command(
        commands,
        "lab",
        "open the lessons in JupyterLab",
        "Copies the lessons into your folder on the first start (never over your own work), fetches the model if it "
        "is missing, and serves JupyterLab on this machine only.",
        ["pagedlab lab", "pagedlab lab --no-browser --port 9000"],
        _lab,
    )
    lab.add_argument("--port", type=int, default=8888, help="first port to try (default: 8888)")
    lab.add_argument("--no-browser", action="store_true", help="only print the address")
    lab.add_argument("--no-fetch", action="store_true", help="do not fetch the model")

    _command(
        commands,
        "doctor",
        "check that everything the course needs works here",
        "Each line says 'ok' or 'problem' and what to do. The exit status is 1 if there is a problem.",
        ["pagedlab doctor"],
        _doctor,
    )
    fetch = _command(
        commands,
        "fetch",
        "fetch the language model (about 100 MB, once)",
        "The file is checked and kept in your cache folder, or in PAGEDLAB_CACHE if that is set.",
        ["pagedlab fetch", "pagedlab fetch --from SmolLM2-135M-Instruct.Q4_1.gguf"],
        _fetch,
    )
    fetch.add_argument("--from", dest="source", metavar="FILE", help="use this file instead of the network")
    reset = _command(
        commands,
        "reset",
        "start a lesson again; your version is kept as a backup",
        "Puts a fresh copy of one lesson into your folder. What it replaces goes to the 'backups' folder.",
        ["pagedlab reset 3", "pagedlab reset block_allocator"],
        _reset,
    )
    reset.add_argument("lesson", metavar="LESSON", help="number or name of the lesson")
    generate = _command(
        commands,
        "generate",
        "let the model continue a text, on the engine",
        "The text appears as it is generated. It is greedy (always the most likely token) unless --temperature is "
        "above 0.",
        [
            "pagedlab generate 'The capital of France is' --max-tokens 20",
            "pagedlab generate --chat 'Why is the sky blue?' --temperature 0.7 --seed 1",
            "pagedlab generate 'Once upon a time' --dtype float32 --stats",
        ],
        _generate,
    )
    generate.add_argument("prompt", metavar="PROMPT", help="the text to go on from; '-' reads it from standard input")
    generate.add_argument("--max-tokens", type=int, default=128, metavar="N", help="stop after N tokens (default: 128)")
    generate.add_argument("--chat", action="store_true", help="ask it as a question, in the model's chat format")
    generate.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0: greedy (default); 1: as is")
    generate.add_argument("--top-p", type=float, default=1.0, metavar="P", help="from the likeliest that sum to P")
    generate.add_argument("--top-k", type=int, default=0, metavar="K", help="from the K likeliest tokens; 0: all")
    generate.add_argument("--seed", type=int, metavar="S", help="draw the same again")
    generate.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text")
    generate.add_argument("--ignore-eos", action="store_true", help="go on after the model says it is done")
    generate.add_argument("--model", metavar="PATH", help="a .gguf file or a Hugging Face directory (Llama family)")
    generate.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    generate.add_argument("--stats", action="store_true", help="what the engine measured, on standard error")
    kernels = _command(
        commands,
        "kernels",
        "show what the Triton kernels compile to, with no GPU",
        "Registers, spills, shared memory, programs on a multiprocessor, how wide the loads are, tensor cores: of this "
        "package's kernels, for each architecture. About a second for each line the first time; then it is kept in "
        "your cache folder.",
        [
            "pagedlab kernels --target sm_90",
            "pagedlab kernels --kernel decode --kernel merge --target sm_80 --target gfx942",
            "pagedlab kernels --json > kernels.json",
        ],
        _kernels,
    )
    kernels.add_argument("--target", action="append", metavar="NAME", help="sm_90, gfx942, ... (default: all)")
    kernels.add_argument("--kernel", action="append", metavar="NAME", help="decode, write, ... (default: all)")
    kernels.add_argument("--json", action="store_true", help="as JSON")
    _command(
        commands,
        "progress",
        "show which exercises are done",
        "Draws the map of the course with what you have passed.",
        ["pagedlab progress"],
        _progress,
    )
    return parser


def _command(commands, name, summary, description, examples, run):
    command = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog="examples:\n" + "\n".join(f"  {example}" for example in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run)
    return command


def _lab(args) -> int:
    from pagedlab.course.lab import run_lab

    return run_lab(port=args.port, browser=not args.no_browser, fetch=not args.no_fetch)


def _doctor(args) -> int:
    from pagedlab.course.doctor import run_doctor

    return run_doctor()


def _fetch(args) -> int:
    from pagedlab.model.fetch import fetch, is_fetched

    unused = args.source is not None and is_fetched()
    print(f"model: {fetch(args.source, progress=True)}")
    if unused:
        print(f"It was there already, whole and checked; {args.source} was not looked at.")
    return 0


def _reset(args) -> int:
    from pagedlab.course.workspace import Workspace

    done = Workspace().reset(args.lesson)
    print(f"fresh: {done.lesson}")
    print(f"your version: {done.backup}" if done.backup else "there was no version of yours to keep")
    return 0


def _prompt(argument: str) -> str:
    """The text that '-' stands for, or the argument itself. ValueError: it is no text."""
    if argument == "-" and sys.stdin is None:
        raise ValueError("'-' reads the prompt from standard input, which is closed")
    try:
        prompt = sys.stdin.read() if argument == "-" else argument
        prompt.encode()
    except UnicodeError as error:  # bytes of another encoding; Python may let them through as halves of a character
        raise ValueError(f"the prompt is not text in UTF-8 ({error})") from error
    return prompt


def _generate(args) -> int:
    import torch

    from pagedlab.engine.engine import Engine
    from pagedlab.engine.params import SamplingParams

    try:
        params = SamplingParams(
            max_tokens=args.max_tokens,
            temperature=args.temperature,
            top_p=args.top_p,
            top_k=args.top_k,
            seed=args.seed,
            stop=args.stop,
            ignore_eos=args.ignore_eos,
        )
        prompt = _prompt(args.prompt)
        engine = Engine.load(args.model, getattr(torch, args.dtype))
        if args.chat:
            prompt = engine.tokenizer.chat([{"role": "user", "content": prompt}])
        pieces = engine.stream(prompt, params)
    except ValueError as error:  # of a number that makes no sense; it says which
        raise PagedLabError(str(error)) from error
    for piece in pieces:
        print(piece, end="", flush=True)
    print()
    if args.stats:
        print(engine.metrics, file=sys.stderr)
    return 0


def _kernels(args) -> int:
    try:
        from pagedlab.kernels.figures import main
    except ImportError as error:
        if error.name != "triton":
            raise
        raise PagedLabError("Triton compiles the kernels, and it is there for Linux only") from error
    main(args.kernel, args.target, args.json)
    return 0


def _progress(args) -> int:
    from pagedlab.course import progress

    print(progress())
    return 0
