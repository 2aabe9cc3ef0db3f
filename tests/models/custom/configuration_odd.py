"""The config of a language model that transformers does not know."""

from transformers import PretrainedConfig


class OddConfig(PretrainedConfig):
    """Sizes, the base and the rotary share, under the names that such files use."""

    model_type = "odd"

    def __init__(
        self,
        vocab_size=96,
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=16,
        partial_rotary_factor=1.0,
        rope_theta=10000.0,
        max_position_embeddings=64,
        **kwargs,
    ):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = head_dim
        self.partial_rotary_factor = partial_rotary_factor
        self.rope_theta = rope_theta
        self.max_position_embeddings = max_position_embeddings
        super().__init__(**kwargs)
