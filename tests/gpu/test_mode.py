"""A process has one mode, chosen before Triton is imported. So each case has a process of its own."""

import os
import subprocess
import sys

import pytest

from pagedlab.gpu import mode

pytest.importorskip("triton")

SAY = "print(mode.is_interpreting(), type(triton.language.cdiv).__name__)"


def run(program: str, variable: str | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != mode.VARIABLE}
    if variable is not None:
        environment[mode.VARIABLE] = variable
    program = "from pagedlab.gpu import mode\n" + program
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_interpret_comes_before_the_import_and_may_come_again():
    said = run(f"print(mode.is_interpreting()); mode.interpret(); import triton; mode.interpret(); {SAY}")
    assert said == "False\nTrue InterpretedFunction"


def test_interpret_comes_too_late():
    program = "import triton\ntry: mode.interpret()\nexcept mode.ModeError as error: print(error)\n"
    said = run(program + SAY).splitlines()
    assert "Restart the kernel" in said[0] and "mode.interpret()" in said[0]
    assert said[1] == "False JITFunction"


def test_the_variable_is_read_as_triton_reads_it():
    words = "'1', 'TRUE', 'on', 'yes', 'y', '0', 'false', 'off', 'n', '2', ''"
    said = run(
        "import os; from triton._C.libtriton import getenv_bool\n"
        f"for word in ({words}):\n"
        "    os.environ[mode.VARIABLE] = word\n"
        "    import sys; sys.modules.pop('triton.language', None)\n"
        "    assert mode.is_interpreting() is getenv_bool(mode.VARIABLE, False), word\n"
    )
    assert said == ""


def test_choose_interprets_where_there_is_no_gpu_and_only_there():
    ask = (
        "import sys, types; cuda = types.SimpleNamespace(is_available=lambda: %s)\n"
        "sys.modules['torch'] = types.SimpleNamespace(cuda=cuda)\n"
        "mode.choose(); import triton\nmode.choose(); "
    ) + SAY
    assert run(ask % False) == "True InterpretedFunction"
    assert run(ask % True) == "False JITFunction"
    assert run(ask % False, "0") == "False JITFunction"
    assert run(ask % True, "1") == "True InterpretedFunction"


def test_choose_needs_no_torch_when_something_else_has_said_so():
    assert run("import sys; mode.choose(); print('torch' in sys.modules)", "1") == "False"
