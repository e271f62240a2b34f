"""Comparing a learner's tensor with the right one, and saying where they part in the lesson's words."""

from dataclasses import dataclass

import torch

from pagedlab.course.promise import Wrong

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Suspect:
    """A tensor that a well-known mistake would give, and what to say when the answer looks like it."""

    tensor: torch.Tensor
    message: str
    hint: str


def expect_tensor(
    got, want: torch.Tensor, call: str, axes: tuple[str, ...], hint: str = "", suspects: tuple[Suspect, ...] = ()
) -> None:
    """Raise `Wrong` unless `got` is a tensor of `want`'s shape with its values, to within rounding.

    call: how a learner would write the call, for the example. axes: what each dimension counts ("head", "token", ...).
    """
    if not isinstance(got, torch.Tensor):
        raise Wrong(f"A tensor was expected; this is {type(got).__name__}.", f"{call} returned {got!r:.80}", hint)
    got = got.detach()
    if got.shape != want.shape:
        _accuse(got, suspects, f"{call} returned a tensor of shape {list(got.shape)}; right is {list(want.shape)}")
        names = ", ".join(f"{axis}s" for axis in axes)
        raise Wrong(
            f"The result has the wrong shape: {list(got.shape)} where {list(want.shape)} is right ([{names}]).",
            f"{call} returned a tensor of shape {list(got.shape)}",
            hint,
        )
    if got.dtype != want.dtype:
        raise Wrong(f"The result is {got.dtype}; the inputs were {want.dtype}.", f"{call} returned {got.dtype}", hint)
    wrong = ~torch.isclose(got, want, rtol=TOLERANCE, atol=TOLERANCE)
    if not wrong.any():
        return
    first = tuple(int(index) for index in wrong.nonzero()[0])
    place = ", ".join(f"{axis} {index}" for axis, index in zip(axes, first, strict=True))
    example = f"{call}\nat {place} it gave {shown(got[first])}, right is {shown(want[first])}"
    example += f"\n({int(wrong.sum())} of {wrong.numel()} numbers differ)"
    _accuse(got, suspects, example)
    if got.isnan().any():
        raise Wrong("The result has NaN in it: not a number.", example, hint)
    raise Wrong(f"The numbers are wrong, first at {place}.", example, hint)


def _accuse(got: torch.Tensor, suspects: tuple[Suspect, ...], example: str) -> None:
    for suspect in suspects:
        # An empty tensor looks like any other empty one, so it proves nothing.
        same_shape = suspect.tensor.shape == got.shape and got.numel() > 0
        if same_shape and torch.allclose(got, suspect.tensor.to(got.dtype), rtol=TOLERANCE, atol=TOLERANCE):
            raise Wrong(suspect.message, example, suspect.hint)


def expect_untouched(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor], call: str) -> None:
    """Raise `Wrong` when a call changed one of the tensors it was given."""
    for name, tensor in before.items():
        if not torch.equal(tensor, after[name]):
            raise Wrong(
                f"The call changed `{name}`, which belongs to the caller.",
                f"after {call}, {name} holds other numbers than before",
                "An operation whose name ends in `_`, or `x[...] = ...`, writes into the tensor it is given.",
            )


def shown(number: torch.Tensor) -> str:
    return f"{float(number):.4g}"


def randn(seed: int, *shape: int) -> torch.Tensor:
    """Numbers centred on zero: a mistake can't hide behind ones, or behind everything being positive."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
