"""The flags by which llama.cpp's runtime scales what a GGUF holds unscaled, or scaled otherwise.

Read in build 11549, common/arg.cpp: --rope-scaling, --rope-scale, --rope-freq-base, --yarn-orig-ctx, -c.
"""

from __future__ import annotations

from ropetool.rope.frequencies import Default, Linear, Scaling, Yarn


def scaling_flags(scaling: Scaling, length: int) -> str:
    """The flags for a method, and for a context of ``length`` tokens; empty for a method that has no flags."""
    match scaling:
        case Yarn():
            told = f"--rope-scaling yarn --rope-scale {scaling.factor:.10g} --yarn-orig-ctx {scaling.original_length}"
        case Linear():
            told = f"--rope-scaling linear --rope-scale {scaling.factor:.10g}"
        case Default():
            told = f"--rope-freq-base {scaling.theta:.10g}"
        case _:
            return ""
    return f"{told} -c {length}"
