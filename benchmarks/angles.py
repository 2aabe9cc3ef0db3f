"""What rounding of angles costs a trained model: its loss on a long text, with angles in float32 and in bfloat16.

The model is read once at its trained length, in bfloat16 as most are; first as transformers runs it, then with its
frequencies rounded to bfloat16, then with positions, frequencies and angles in bfloat16. docs/pitfalls.md has the
figures of SmolLM2-135M-Instruct.

    python benchmarks/angles.py DIR
"""

from __future__ import annotations

import argparse
import types
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from ropetool.checkpoint.bundled import TEXT, bundled
from ropetool.models.text import encode

CHUNK_TOKENS = 512


@torch.no_grad()
def losses(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The loss of every next token of ``ids`` [T], shape [T - 1]; the head is run in pieces."""
    states = model.model(ids[None, :-1]).last_hidden_state[0].split(CHUNK_TOKENS)
    wanted = ids[1:].split(CHUNK_TOKENS)
    pairs = zip(states, wanted, strict=True)
    return torch.cat([cross_entropy(model.lm_head(state).float(), ids, reduction="none") for state, ids in pairs])


def all_in_bfloat16(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """In the place of a rotary module's forward: what code does that forgets float32."""
    angles = position_ids[:, :, None].bfloat16() * self.inv_freq.bfloat16()
    both = torch.cat((angles, angles), -1)
    return tuple((f(both) * self.attention_scaling).to(x.dtype) for f in (torch.cos, torch.sin))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(asked.model, dtype=torch.bfloat16).eval()
    length = model.config.max_position_embeddings
    ids = encode(asked.model, bundled(TEXT).read_text(encoding="utf-8"))[:length]
    rotary = model.model.rotary_emb
    for name in ("angles in float32", "frequencies rounded", "all in bfloat16"):
        if name == "frequencies rounded":
            rotary.inv_freq = rotary.inv_freq.bfloat16().float()
        elif name == "all in bfloat16":
            rotary.forward = types.MethodType(all_in_bfloat16, rotary)
        found = losses(model, ids)
        bins = {f"{start}-{stop}": found[start:stop].mean() for start, stop in ((0, 1024), (length // 2, length))}
        print(f"{name:20}", ", ".join(f"{positions} {loss:.3f}" for positions, loss in bins.items()), flush=True)


if __name__ == "__main__":
    main()
