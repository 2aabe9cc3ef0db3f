"""Attention with norms of its own over each head of q and k, of which a part turns, the two halves of it together."""

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


class OddRotaryEmbedding(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = int(config.head_dim * config.partial_rotary_factor)
        exponents = torch.arange(0, width, 2).float() / width
        self.register_buffer("inv_freq", 1.0 / config.rope_theta**exponents, persistent=False)

    def forward(self, x, position_ids):
        angles = (position_ids[..., None].float() * self.inv_freq).repeat(1, 1, 2)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotate(x, cos, sin):
    x, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    a, b = x.chunk(2, dim=-1)
    return torch.cat((x * cos[:, None] + torch.cat((-b, a), dim=-1) * sin[:, None], rest), dim=-1)


def eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    key, value = (x.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for x in (key, value))
    scores = query @ key.transpose(-1, -2) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class OddNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class OddAttention(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.config, self.layer_idx, self.is_causal, d = config, layer_idx, True, config.head_dim
        self.query = nn.Linear(config.hidden_size, config.num_attention_heads * d, bias=False)
        self.key = nn.Linear(config.hidden_size, config.num_key_value_heads * d, bias=False)
        self.value = nn.Linear(config.hidden_size, config.num_key_value_heads * d, bias=False)
        self.out = nn.Linear(config.num_attention_heads * d, config.hidden_size, bias=False)
        self.norm_of_query, self.norm_of_key = OddNorm(d), OddNorm(d)
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads

    def forward(self, x, cos_sin, mask):
        b, t, _ = x.shape
        q, k, v = (
            project(x).view(b, t, -1, self.config.head_dim) for project in (self.query, self.key, self.value)
        )  # fmt: skip
        q, k = self.norm_of_query(q).transpose(1, 2), self.norm_of_key(k).transpose(1, 2)
        q, k = (rotate(y, *cos_sin) for y in (q, k))
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        out, _ = attend(self, q, k, v.transpose(1, 2), mask, scaling=self.config.head_dim**-0.5, dropout=0.0)
        return self.out(out.reshape(b, t, -1))
