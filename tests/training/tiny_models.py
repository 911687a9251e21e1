"""A random Llama of a few thousand weights with a tokenizer of its own, and small data: real training in seconds."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|im_start|>", "<|im_end|>")


def kernel(operation: str, number: int) -> str:
    """A source whose number is all that decides its speed."""
    return f"import triton\n\n\ndef {operation}(x):\n    return launch(x, block={number})\n"


def write_pool(folder: Path, operation: str, kernels: int = 32, device: str = "NVIDIA H100") -> Path:
    """A recorded task whose kernels run through all eight bins."""
    rows: list[dict[str, Any]] = [{"pool": {"task": operation, "device": device, "reference_id": "k0"}}]
    for number in range(kernels + 1):
        log2 = 0.0 if number == 0 else -2.8 + 5.6 * (number % 8) / 7
        rows.append(
            {
                "id": f"k{number}",
                "code": kernel(operation, number),
                "language": "triton",
                "outcome": "ok",
                "time_us": 100.0 / math.exp2(log2),
                "spread": 0.01,
            }
        )
    path = folder / f"{operation}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def section(folder: Path, model: Path, **changes: Any) -> dict[str, Any]:
    """A ``training:`` section for the tiny model, on two operations of which one is held out."""
    pools = [
        folder / f"{name}.jsonl" if (folder / f"{name}.jsonl").exists() else write_pool(folder, name)
        for name in ("scale", "shift")
    ]
    settings: dict[str, Any] = {
        "base_model": str(model),
        "data": {"tasks": [str(pool) for pool in pools]},
        "held_out": {"operations": ["shift"], "kernels": 0.2},
        "steps": 4,
        "batch_size": 4,
        "learning_rate": 0.01,
        "max_kernel_tokens": 136,
        "save_steps": 2,
        "log_steps": 1,
        "samples": 2,
        "evaluation_rows": 4,
    }
    return settings | changes


def tokenizer(context: int, template: str = CHAT_TEMPLATE) -> Any:
    """A byte-pair tokenizer learned from our own prompts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from gpu_forecasters_plugin.forecasters.language_model.prompting import PromptWriter

    texts = [
        PromptWriter(readout, reasoning=False, max_kernel_tokens=136)._system  # type: ignore[arg-type]
        for readout in ("logprobs", "verbalized")
    ]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=1024,
            special_tokens=list(SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=SPECIAL[1], pad_token=SPECIAL[1], model_max_length=context
    )
    fast.chat_template = template
    return fast


def write_model(folder: Path, *, context: int = 4096, hidden: int = 16) -> Path:
    """A model folder as transformers and vLLM load it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    fast = tokenizer(context)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(fast),
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=context,
            bos_token_id=None,
            eos_token_id=fast.eos_token_id,
            pad_token_id=fast.pad_token_id,
        )
    )
    with torch.no_grad():
        # A trained model's head tells tokens apart; a random one's hardly can, whatever stands before it.
        model.lm_head.weight.mul_(20.0)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


CHANNELS = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}{% if message['role'] == 'assistant' %}"
    "<|channel|>final{% endif %}<|message|>{{ message['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)


def write_gpt_oss(folder: Path) -> Path:
    """A random gpt-oss with four experts, which answers on a channel as the real one does."""
    import torch
    from transformers import GptOssConfig, GptOssForCausalLM

    fast = tokenizer(4096, CHANNELS)
    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=len(fast),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=64,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
    )
    GptOssForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder
