"""Reading a strided block of memory in the order of memory."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen


@frozen(kw_only=True)
class Layout:
    """How the elements of a strided tensor lie in memory."""

    axes: tuple[int, ...]
    """The axes that move through memory, widest stride first. Axes of size 1 and repeated ones are left out."""

    times: int
    """How often each stored element occurs: the product of the sizes of the axes with stride 0 (`expand`)."""

    dense: bool
    """The stored elements fill one run of memory without gap or overlap, in whatever order of axes."""


def layout_of(shape: Sequence[int], strides: Sequence[float]) -> Layout:
    """The layout of a tensor that is not empty.

    Args:
        shape: its sizes.
        strides: in elements, none negative. A field of a record may have strides that are no whole number of them.


    >>> layout_of((2, 3, 4), (1, 8, 2))
    Layout(axes=(1, 2, 0), times=1, dense=True)
    >>> layout_of((5, 3), (0, 2))
    Layout(axes=(1,), times=5, dense=False)
    """
    times = 1
    axes = []
    for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        if size == 1:
            continue
        if stride == 0:
            times *= size
        else:
            axes.append(axis)
    axes.sort(key=lambda axis: (strides[axis], shape[axis]), reverse=True)
    expected = 1
    dense = True
    for axis in reversed(axes):
        dense = dense and strides[axis] == expected
        expected *= shape[axis]
    return Layout(axes=tuple(axes), times=times, dense=dense)
