"""The container, against files the `gguf` package writes; then every way a file can be damaged."""

import struct

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.errors import PagedLabError
from pagedlab.model.errors import ModelFileError
from pagedlab.model.fetch import fetch
from pagedlab.model.gguf_file import GGUFFile

KINDS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


def write(path, tensors, fields=()):
    """tensors: name -> (float32 array, kind); fields: (method of the writer, name, value)."""
    writer = gguf.GGUFWriter(str(path), "llama")
    for method, name, value in fields:
        getattr(writer, method)(name, value)
    for name, (array, kind) in tensors.items():
        quantized = gguf.GGMLQuantizationType[kind]
        if kind == "F32":
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, quantized), raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    array = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    fields = [
        ("add_uint8", "a.u8", 200),
        ("add_int8", "a.i8", -100),
        ("add_uint16", "a.u16", 60000),
        ("add_int32", "a.i32", -(2**31)),
        ("add_uint64", "a.u64", 2**63),
        ("add_float64", "a.f64", 0.1),
        ("add_bool", "a.bool", True),
        ("add_string", "a.string", "Zürich 🙂"),
        ("add_array", "a.strings", ["", "é", "a b"]),
        ("add_array", "a.ints", [1, -2, 3]),
        ("add_array", "a.floats", [0.5, 1.5]),
    ]
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    return write(path, {kind: (array, kind) for kind in KINDS}, fields), array


def test_fields_are_what_was_written(small):
    path, _ = small
    fields = GGUFFile(path).fields
    assert fields["general.architecture"] == "llama"
    assert fields["a.u8"] == 200 and fields["a.i8"] == -100 and fields["a.u16"] == 60000
    assert fields["a.i32"] == -(2**31) and fields["a.u64"] == 2**63 and fields["a.f64"] == 0.1
    assert fields["a.bool"] is True and fields["a.string"] == "Zürich 🙂"
    assert fields["a.strings"] == ["", "é", "a b"]
    assert fields["a.ints"] == [1, -2, 3] and fields["a.floats"] == [0.5, 1.5]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_dequantized_as_the_gguf_package_does(small, kind):
    path, array = small
    quantized = gguf.GGMLQuantizationType[kind]
    expected = gguf.quants.dequantize(gguf.quants.quantize(array, quantized), quantized)
    tensor = GGUFFile(path).tensor(kind, (4, 64))
    assert tensor.dtype == torch.float32
    assert np.array_equal(tensor.numpy(), expected)
    tensor.zero_()  # in memory of its own: the file does not change
    assert np.array_equal(GGUFFile(path).tensor(kind, (4, 64)).numpy(), expected)


def test_the_course_model_is_read_as_the_gguf_package_reads_it():
    path = fetch()
    ours, theirs = GGUFFile(path), gguf.GGUFReader(path)
    for name, field in theirs.fields.items():
        if not name.startswith("GGUF."):
            assert ours.fields[name] == field.contents(), name
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors[::30]:
        shape = tuple(int(size) for size in tensor.shape[::-1])
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(ours.tensor(tensor.name, shape).numpy().reshape(expected.shape), expected), tensor.name


def test_a_missing_tensor_and_another_shape_are_named(small):
    file = GGUFFile(small[0])
    with pytest.raises(ModelFileError, match=r"no tensor 'nothing'; expected one of shape \(2, 3\)"):
        file.tensor("nothing", (2, 3))
    with pytest.raises(ModelFileError, match=r"'F16' has shape \(4, 64\); expected \(64, 4\)"):
        file.tensor("F16", (64, 4))


def test_a_file_that_is_not_one(tmp_path):
    path = tmp_path / "x.gguf"
    with pytest.raises(ModelFileError, match="cannot read .*No such file"):
        GGUFFile(path)
    path.write_bytes(b"")
    with pytest.raises(ModelFileError, match="is empty"):
        GGUFFile(path)
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(ModelFileError, match=r"begins with b'PK.x03.x04'; expected b'GGUF'"):
        GGUFFile(path)
    for version in (1, 4, 0x03000000):  # the last is version 3 from a big-endian machine
        path.write_bytes(b"GGUF" + struct.pack("<I", version) + bytes(100))
        with pytest.raises(ModelFileError, match=f"version {version}; expected 2 or 3"):
            GGUFFile(path)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_cut_anywhere_it_says_so(small, tmp_path_factory, data):
    whole = small[0].read_bytes()
    # The last bytes are padding of the last tensor; without them the file is still whole.
    end = max(info.start + info.num_bytes for info in GGUFFile(small[0]).tensors.values())
    length = data.draw(st.integers(1, end - 1), label="bytes kept")
    path = tmp_path_factory.getbasetemp() / "cut.gguf"
    path.write_bytes(whole[:length])
    with pytest.raises(ModelFileError, match=f"cut off.*but the file has {length:,} bytes"):
        GGUFFile(path)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_anywhere_it_is_read_or_refused_but_never_crashes(small, tmp_path_factory, data):
    damaged = bytearray(small[0].read_bytes())
    header = min(info.start for info in GGUFFile(small[0]).tensors.values())
    for _ in range(data.draw(st.integers(1, 3), label="places")):
        at = data.draw(st.integers(0, header - 1), label="at")
        damaged[at] = data.draw(st.integers(0, 255), label="byte")
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(damaged)
    try:
        file = GGUFFile(path)
        for name, info in file.tensors.items():
            assert file.tensor(name, info.shape).shape == info.shape
    except PagedLabError:
        pass


def header(fields=b"", tensors=b"", num_fields=0, num_tensors=0):
    return b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_fields) + fields + tensors


def named(name):
    return struct.pack("<Q", len(name)) + name


@pytest.mark.parametrize(
    "content, message",
    [
        (header(named(b"x") + struct.pack("<I", 99), num_fields=1), "unknown type number 99"),
        (header(named(b"x") + struct.pack("<IIQ", 9, 9, 1), num_fields=1), "items of type number 9"),
        (header(named(b"x") + struct.pack("<IIQ", 9, 8, 2**60), num_fields=1), "a list of strings"),
        (header(named(b"x") + struct.pack("<IIQ", 9, 4, 2**62), num_fields=1), "cut off"),
        (header(num_tensors=2**40), "cut off"),
        (
            header(named(b"general.alignment") + struct.pack("<II", 4, 0), num_fields=1),
            "general.alignment is 0; expected a positive number",
        ),
        (header(tensors=named(b"t") + struct.pack("<IQIQ", 1, 32, 777, 0), num_tensors=1), "type number 777"),
        (header(tensors=named(b"t") + struct.pack("<IQIQ", 1, 33, 8, 0), num_tensors=1), "blocks of 32"),
        (header(tensors=named(b"t") + struct.pack("<IQIQ", 1, 2**61, 0, 0), num_tensors=1), "cut off: tensor 't'"),
        (header(tensors=2 * (named(b"t") + struct.pack("<IQIQ", 1, 0, 0, 0)), num_tensors=2), "1 different names"),
    ],
)
def test_a_header_that_cannot_be_true(tmp_path, content, message):
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=message):
        GGUFFile(path)
