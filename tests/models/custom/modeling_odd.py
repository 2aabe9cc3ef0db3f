"""A language model that transformers does not know; the attention is the part that its variants replace."""

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from .attention_odd import OddAttention, OddRotaryEmbedding
from .configuration_odd import OddConfig


class OddLayer(nn.Module):
    """Attention without a feed-forward part: nothing else is asked of it."""

    def __init__(self, config, layer_idx):
        super().__init__()
        self.attention = OddAttention(config, layer_idx)
        self.input_norm = nn.RMSNorm(config.hidden_size)

    def forward(self, x, cos_sin, mask):
        return x + self.attention(self.input_norm(x), cos_sin, mask)


class OddPreTrainedModel(PreTrainedModel):
    config_class = OddConfig
    base_model_prefix = "model"
    _supports_attention_backend = True
    _supports_sdpa = True


class OddModel(OddPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([OddLayer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = nn.RMSNorm(config.hidden_size)
        self.rotary_emb = OddRotaryEmbedding(config)
        self.post_init()

    def get_input_embeddings(self):
        return self.tok_embeddings

    def forward(self, input_ids, use_cache=None, **kwargs):
        x = self.tok_embeddings(input_ids)
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        tokens = input_ids.shape[1]
        mask = torch.full((tokens, tokens), torch.finfo(x.dtype).min, device=x.device).triu(1)[None, None].to(x.dtype)
        tables = self.rotary_emb(x, positions)
        for layer in self.layers:
            x = layer(x, tables, mask)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x))


class OddForCausalLM(OddPreTrainedModel, GenerationMixin):
    def __init__(self, config):
        super().__init__(config)
        self.model = OddModel(config)
        self.output = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids, use_cache=None, **kwargs):
        return CausalLMOutputWithPast(logits=self.output(self.model(input_ids).last_hidden_state))
