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


def _progress(args) -> int:
    from pagedlab.course import progress

    print(progress())
    return 0
