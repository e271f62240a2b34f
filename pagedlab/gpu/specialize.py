"""What a launch tells the compiler about its arguments.

A kernel is compiled for the types of its arguments, and for three facts about their values: a whole number that is 1
becomes a constant, and of one that 16 divides, and of an address, it is known that 16 divides it. That decides
whether 16 bytes can move at once. A launch finds all this out from the arguments themselves; whoever compiles without
launching has to do the same, or sees another kernel than the one that will run.
"""

import inspect
from dataclasses import dataclass

from pagedlab.errors import PagedLabError
from pagedlab.gpu import carry
from pagedlab.gpu.targets import Target


@dataclass(frozen=True)
class Pointer:
    """A tensor, as far as a compiler cares: what its numbers are, and where it begins. Stands for one in `arguments`.

    dtype: "float16", "bfloat16", "int32", ... address: of its first number, in bytes; 0 is as good as any multiple of
    16. bytes: of the memory it lies in; only compilers for AMD look whether that is less than 2 GiB.
    """

    dtype: str
    address: int = 0
    bytes: int = 0

    def data_ptr(self) -> int:
        return self.address

    def ptr_range(self) -> int:
        return self.bytes


@dataclass(frozen=True)
class Special:
    """What is known of the arguments, in Triton's words, by the number of the parameter."""

    types: dict[str, str]
    """By name: "*fp16", "i32", "constexpr"."""
    constants: dict[tuple[int], object]
    facts: dict[tuple[int], list]
    """[["tt.divisibility", 16]] or less."""


def specialize(kernel, arguments: dict[str, object], target: Target, hints: bool = True) -> Special:
    """As Triton does, with its own functions. hints: without, only types count.

    Raises PagedLabError for a missing argument, and for one that no kernel can take.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    parameters = inspect.signature(carry.function(kernel)).parameters
    missing = [name for name, one in parameters.items() if name not in arguments and one.default is one.empty]
    if missing:
        raise PagedLabError(
            f"{kernel.fn.__name__} asks for {', '.join(missing)}. There is {', '.join(sorted(arguments)) or 'nothing'}."
        )
    backend = make_backend(GPUTarget(target.backend, target.arch, target.warp_size))
    never = [carry.options(kernel).get(name, ()) for name in ("do_not_specialize", "do_not_specialize_on_alignment")]
    special = Special({}, {}, {})
    for number, (name, parameter) in enumerate(parameters.items()):
        value = _plain(arguments.get(name, parameter.default))
        unknown = [not hints or name in names or number in names for names in never]
        kind, fact = _specialize_one(parameter, value, backend, *unknown)
        special.types[name] = kind
        if kind == "constexpr":
            special.constants[number,] = value
        elif isinstance(fact, str):
            special.facts[number,] = backend.parse_attr(fact)
    return special


def _plain(value):
    """numpy's numbers are none to Triton, and a constant from outside of a kernel is wrapped."""
    if type(value).__name__ == "constexpr":
        return value.value
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return value.item()
    return value


def _specialize_one(parameter: inspect.Parameter, value, backend, unknown: bool, unaligned: bool) -> tuple:
    """(type, fact) of one argument."""
    from triton.runtime.jit import KernelParam, create_function_from_signature

    one = KernelParam(0, parameter, unknown, unaligned)
    bind = create_function_from_signature(
        inspect.Signature([parameter.replace(kind=parameter.KEYWORD_ONLY)]), [one], backend
    )
    try:
        _, [(kind, fact)], _ = bind(**{parameter.name: value})
    except KeyError as error:
        raise PagedLabError(f"{parameter.name} has numbers of type {error}, which Triton has not.") from None
    except OverflowError:
        raise PagedLabError(f"{parameter.name} is {value}, which 64 bits cannot hold.") from None
    except TypeError:
        kind = None
    if not isinstance(kind, str):
        raise PagedLabError(
            f"{parameter.name} is a {type(value).__name__}. A kernel takes tensors and numbers; what else it takes "
            "must be marked tl.constexpr."
        )
    return kind, fact
