"""The forecast of transformers' `generate` against the real one, on small random models on the CPU.

A dispatch mode sees every tensor that an operator makes and counts its bytes until nothing holds it.
"""

import weakref

import pytest

import planner

SHAPE = {"hidden_size": 256, "intermediate_size": 896, "num_hidden_layers": 6, "num_attention_heads": 8,
         "num_key_value_heads": 2, "vocab_size": 2000, "max_position_embeddings": 2048, "pad_token_id": 0}  # fmt: skip
GPT2 = {"n_embd": 256, "n_head": 8, "n_layer": 4, "vocab_size": 2000, "n_positions": 1024}


def peak_of_generate(config, *, batch, given, new, attention="sdpa"):
    """Most bytes alive beside weights and buffers."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    class Live(TorchDispatchMode):
        def __init__(self, known):
            super().__init__()
            self.known, self.sizes, self.now, self.peak = known, {}, 0, 0

        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            result = operator(*args, **(kwargs or {}))
            for tensor in tree_leaves(result):
                if isinstance(tensor, torch.Tensor):
                    self.see(tensor.untyped_storage())
            return result

        def see(self, storage):
            if storage._cdata in self.sizes or storage.data_ptr() in self.known:
                return
            self.sizes[storage._cdata] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.drop, storage._cdata)

        def drop(self, key):
            self.now -= self.sizes.pop(key, 0)

    whole = AutoConfig.for_model(**config, bos_token_id=None, eos_token_id=None)
    model = AutoModelForCausalLM.from_config(whole, dtype=torch.bfloat16, attn_implementation=attention)
    held = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    ids = torch.randint(1, 2000, (batch, given))
    mask = torch.ones_like(ids)
    mask[0, 0] = 0 if batch > 1 else 1
    how = GenerationConfig(max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0)
    live = Live(held)
    with torch.no_grad(), live:
        model.eval().generate(input_ids=ids, attention_mask=mask, generation_config=how)
    return live.peak


@pytest.mark.engine
@pytest.mark.parametrize(
    ("config", "call", "tolerance"),
    [
        ({"model_type": "llama", **SHAPE}, {"batch": 1, "given": 300, "new": 2}, 0.02),
        ({"model_type": "llama", **SHAPE}, {"batch": 2, "given": 200, "new": 2, "attention": "eager"}, 0.02),
        ({"model_type": "llama", **SHAPE, "num_key_value_heads": 8}, {"batch": 4, "given": 4, "new": 40}, 0.05),
        ({"model_type": "qwen3", **SHAPE, "head_dim": 64}, {"batch": 1, "given": 300, "new": 2}, 0.02),
        ({"model_type": "gemma3_text", **SHAPE, "head_dim": 32, "sliding_window": 128},
         {"batch": 1, "given": 300, "new": 2}, 0.02),
        ({"model_type": "phi3", **SHAPE}, {"batch": 1, "given": 300, "new": 2}, 0.02),
        ({"model_type": "mixtral", **SHAPE, "num_local_experts": 4}, {"batch": 1, "given": 300, "new": 2}, 0.03),
        ({"model_type": "gpt2", **GPT2}, {"batch": 1, "given": 300, "new": 2}, 0.03),
    ],
    ids=["llama", "eager padded", "decode", "qwen3", "gemma3 window", "phi3", "mixtral", "gpt2"],
)  # fmt: skip
def test_peak_of_a_real_call(config, call, tolerance):
    pytest.importorskip("transformers")
    forecast = planner.predict(
        {"kind": "serve", "engine": "transformers", "hf_config": config, "gpu": "cpu",
         "batch_size": call["batch"], "input_tokens": call["given"], "output_tokens": call["new"],
         "attention": call.get("attention", "sdpa")}
    )  # fmt: skip
    beside = forecast.peak_allocated_bytes - forecast.weights_bytes
    assert beside == pytest.approx(peak_of_generate(config, **call), rel=tolerance)
