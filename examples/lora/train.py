"""Fine-tune a chat model with LoRA, with trl and peft: packed chats, a loss on the assistant's tokens alone.

torchrun --nproc-per-node 2 train.py --chats data/chats.jsonl --model Qwen/Qwen3-0.6B [--bits 4]
torchrun --nproc-per-node 2 train.py --tiny [--bits 4]        a tiny random model and chats made here, without a network
"""

import argparse
import os
from pathlib import Path

import torch
from accelerate import PartialState
from datasets import Dataset, load_dataset
from peft import LoraConfig
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, PreTrainedTokenizerFast, set_seed
from transformers.models.qwen3 import Qwen3Config, Qwen3ForCausalLM
from trl import SFTConfig, SFTTrainer

TINY_CHATS = [
    [{"role": "user", "content": f"What is {a} plus {b}?"}, {"role": "assistant", "content": f"It is {a + b}."}]
    for a in range(30)
    for b in range(10)
]
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}
{% else %}{{ message.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def tiny_base(folder):
    """Save a random model of Qwen3's architecture: the same on every node."""
    if Path(folder, "model.safetensors").exists():
        return
    words = Tokenizer(models.BPE())
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    bpe = {"vocab_size": 512, "special_tokens": special, "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    words.train_from_iterator((m["content"] for chat in TINY_CHATS for m in chat), trainers.BpeTrainer(**bpe))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token=special[0], eos_token=special[2])
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, tie_word_embeddings=True,
    )  # fmt: skip
    set_seed(1)
    Qwen3ForCausalLM(config).save_pretrained(folder)  # model.safetensors comes last


def newest_checkpoint(folder):
    """Return the newest complete checkpoint: the Trainer writes trainer_state.json last."""
    steps = [
        int(state.parent.name.rpartition("-")[2]) for state in Path(folder).glob("checkpoint-*/trainer_state.json")
    ]
    return f"{folder}/checkpoint-{max(steps)}" if steps else None


def load_model(name, bits):
    wanted = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    options = {"dtype": wanted, "attn_implementation": "sdpa"}  # `eager` would let packed chats see each other
    if bits == 4:
        nf4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
        options["quantization_config"] = BitsAndBytesConfig(**nf4, bnb_4bit_compute_dtype=wanted)
        options["device_map"] = {"": int(os.environ.get("LOCAL_RANK", 0)) if torch.cuda.is_available() else "cpu"}
    return AutoModelForCausalLM.from_pretrained(name, **options)


def build_trainer(args):
    on_gpu = torch.cuda.is_available()
    if args.tiny and os.environ.get("LOCAL_RANK", "0") == "0":  # transformers saves on rank 0 alone once it has joined
        tiny_base(f"{args.out}/base")
    PartialState(cpu=not on_gpu).wait_for_everyone()  # joins the other ranks
    if args.tiny:
        args.model = f"{args.out}/base"
        args.length, args.lr, args.accumulate = 64, 5e-3, 1
        chats = Dataset.from_list([{"messages": chat} for chat in TINY_CHATS])
    else:
        chats = load_dataset("json", data_files=args.chats, split="train").select_columns(["messages"])
    set_seed(1)
    settings = SFTConfig(
        output_dir=args.out, num_train_epochs=args.epochs, per_device_train_batch_size=args.batch_size,
        gradient_accumulation_steps=args.accumulate, learning_rate=args.lr, lr_scheduler_type="cosine", warmup_steps=10,
        packing=True, max_length=args.length, assistant_only_loss=True, logging_steps=10, save_steps=args.save_steps,
        save_total_limit=2, seed=1, report_to="none", use_cpu=not on_gpu,
        bf16=on_gpu and torch.cuda.is_bf16_supported(), gradient_checkpointing=on_gpu, dataloader_pin_memory=on_gpu,
        gradient_checkpointing_kwargs={"use_reentrant": False}, ddp_find_unused_parameters=False,
    )  # fmt: skip
    return SFTTrainer(
        load_model(args.model, args.bits), settings, train_dataset=chats,
        processing_class=AutoTokenizer.from_pretrained(args.model),
        peft_config=LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear"),
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chats", help='JSON lines: {"messages": [{"role": "user", "content": "…"}, …]}')
    parser.add_argument("--model", default="Qwen/Qwen3-0.6B", help="name or folder (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="a tiny random model and chats made here")
    parser.add_argument("--bits", type=int, choices=(4, 16), default=16, help="4: nf4 of bitsandbytes (default: 16)")
    defaults = {"--out": "out", "--rank": 16, "--length": 1024, "--epochs": 2.0, "--batch-size": 1, "--accumulate": 8}
    for name, value in {**defaults, "--lr": 2e-4, "--save-steps": 50}.items():
        parser.add_argument(name, type=type(value), default=value, help="(default: %(default)s)")
    args = parser.parse_args()
    if bool(args.chats) == args.tiny:
        parser.error("expected --chats FILE or --tiny")
    trainer = build_trainer(args)
    if newest := newest_checkpoint(args.out):
        print(f"resumed from {newest}", flush=True)
    trainer.train(resume_from_checkpoint=newest)
    trainer.save_model(f"{args.out}/adapter")  # on rank 0 alone
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
