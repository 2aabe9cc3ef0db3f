"""Attention as InternLM2 stores it: one fused projection, per key-value group [q, ..., q, k, v]; adjacent rows turn."""

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


class OddRotaryEmbedding(nn.Module):
    def __init__(self, config):
        super().__init__()
        exponents = torch.arange(0, config.head_dim, 2).float() / config.head_dim
        self.register_buffer("inv_freq", 1.0 / config.rope_theta**exponents, persistent=False)

    def forward(self, x, position_ids):
        angles = (position_ids[..., None].float() * self.inv_freq).repeat_interleave(2, dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotate(x, cos, sin):
    turned = torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
    return x * cos[:, None] + turned * sin[:, None]


def eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    key, value = (x.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for x in (key, value))
    scores = query @ key.transpose(-1, -2) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class OddAttention(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.config, self.layer_idx, self.is_causal = config, layer_idx, True
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads, config.num_key_value_heads, config.head_dim,
        )  # fmt: skip
        rows = (self.heads + 2 * self.kv_heads) * self.head_dim
        self.wqkv = nn.Linear(config.hidden_size, rows, bias=True)
        self.wo = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads

    def forward(self, x, cos_sin, mask):
        b, t, _ = x.shape
        group = self.heads // self.kv_heads
        fused = self.wqkv(x).view(b, t, self.kv_heads, group + 2, self.head_dim)
        q = fused[..., :group, :].reshape(b, t, self.heads, self.head_dim).transpose(1, 2)
        k, v = (fused[..., i, :].transpose(1, 2) for i in (-2, -1))
        q, k = (rotate(y, *cos_sin) for y in (q, k))
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        out, _ = attend(self, q, k, v, mask, scaling=self.head_dim**-0.5, dropout=0.0)
        return self.wo(out.reshape(b, t, -1))
