"""Keys of axolotl without a counterpart: why, and behind two blanks what to do. Empty: changes nothing."""

from __future__ import annotations

from llmsys_exp.importers.hf_keys import REASONS as TRAINER

LIGER = {
    "liger_rope": "rope",
    "liger_rms_norm": "rms_norm",
    "liger_glu_activation": "swiglu",
    "liger_swiglu": "swiglu",
    "liger_fused_linear_cross_entropy": "fused_linear_cross_entropy",
}
"""Kernels of Liger: axolotl's key -> the name in `training.liger_kernels`."""
_ONE_LOADER = "another way of loading data"
_PARALLEL = "training is data-parallel only"
_FUSED = "fused kernels of axolotl are not used  training.liger=true is the nearest thing"

REASONS: dict[str, str] = {
    **{key: why for key, why in TRAINER.items() if key not in ("seed", "optim")},
    "model_type": "",
    "tokenizer_type": "",
    "tokenizer_config": "the tokenizer lies with the model  Set model.tokenizer",
    "processor_type": "",
    "base_model_config": "",
    "is_llama_derived_model": "",
    "is_mistral_derived_model": "",
    "is_falcon_derived_model": "",
    "is_qwen_derived_model": "",
    "strict": "",
    "dataset_prepared_path": "",
    "dataset_processes": "",
    "dataset_num_proc": "",
    "dataset_keep_in_memory": "",
    "push_dataset_to_hub": "",
    "hf_use_auth_token": "",
    "shuffle_merged_datasets": "",
    "dataset_exact_deduplication": "equal rows are kept",
    "streaming": _ONE_LOADER,
    "skip_prepare_dataset": _ONE_LOADER,
    "eval_sample_packing": "",
    "eval_sequence_len": "",
    "eval_batch_size": "",
    "eval_table_size": "",
    "eval_max_new_tokens": "",
    "pad_to_sequence_len": "",
    "sample_packing_eff_est": "",
    "sample_packing_group_size": "",
    "sample_packing_bin_size": "",
    "sample_packing_sequentially": "rows come in one shuffled order",
    "multipack_real_batches": "",
    "excess_length_strategy": "the prompt of a long row is cut, never its answer",
    "min_sample_len": "short rows are kept",
    "curriculum_sampling": "rows come in one shuffled order",
    "roles_to_train": "answers are learnt",
    "train_on_eos": "the token that ends an answer is learnt with it",
    "train_on_eot": "the token that ends an answer is learnt with it",
    "eot_tokens": "the token that ends an answer is learnt with it",
    "lora_fan_in_fan_out": "",
    "lora_on_cpu": "",
    "lora_mlp_kernel": _FUSED,
    "lora_qkv_kernel": _FUSED,
    "lora_o_kernel": _FUSED,
    "lora_embedding_kernel": _FUSED,
    "lora_target_parameters": "adapters go on linear layers",
    "loraplus_lr_ratio": "all weights learn at one rate",
    "loraplus_lr_embedding": "",
    "peft": "peft's further options are not passed on",
    "peft_layers_to_transform": "adapters go on all layers",
    "peft_init_lora_weights": "adapters start as peft's default has it",
    "bnb_config_kwargs": "bitsandbytes packs nf4 with double quantisation  Set method.quantization",
    "qlora_sharded_model_loading": "",
    "relora": "ReLoRA is not done",
    "relora_steps": "ReLoRA is not done",
    "unfrozen_parameters": "weights are trained whole  Set method=freeze method.freeze.modules=[...]",
    "flash_attn_cross_entropy": _FUSED,
    "flash_attn_rms_norm": _FUSED,
    "flash_attn_fuse_mlp": _FUSED,
    "flash_attn_fuse_qkv": _FUSED,
    "xformers_attention": "there is no such attention  Set training.attention",
    "flex_attention": "there is no such attention  Set training.attention",
    "sage_attention": "there is no such attention  Set training.attention",
    "s2_attention": "there is no such attention  Set training.attention",
    "cut_cross_entropy": "training.liger=true has a fused loss  Set training.liger=true",
    "chunked_cross_entropy": "logits are made whole  Set training.loss=chunked",
    "liger_layer_norm": _FUSED,
    "liger_cross_entropy": _FUSED,
    "tiled_mlp": "MLPs are computed whole",
    "activation_offloading": "inputs are kept on the GPU  training.checkpointing=deepspeed "
        "training.checkpointing_cpu=true moves them",
    "sequence_parallel_degree": _PARALLEL,
    "context_parallel_size": _PARALLEL,
    "tensor_parallel_size": _PARALLEL,
    "dp_shard_size": _PARALLEL,
    "dp_replicate_size": _PARALLEL,
    "fsdp_version": "",
    "fsdp_final_state_dict_type": "",
    "embedding_lr": "all weights learn at one rate",
    "lr_groups": "all weights learn at one rate",
    "cosine_min_lr_ratio": "the rate ends at 0",
    "cosine_constant_lr_ratio": "the rate ends at 0",
    "special_tokens": "tokens are those of the tokenizer",
    "tokens": "the vocabulary stays as it is",
    "added_tokens_overrides": "the vocabulary stays as it is",
    "resize_token_embeddings_to_32x": "the vocabulary stays as it is",
    "loss_watchdog_threshold": "a NaN ends a run; high losses do not",
    "loss_watchdog_patience": "",
    "gc_steps": "",
    "gpu_memory_limit": "~the memory of a card has a setting of its own  Set hardware.memory_gib",
    "save_strategy": "~checkpoints are counted in steps  Set checkpoint.every=STEPS",
    "saves_per_epoch": "~checkpoints are counted in steps  Set checkpoint.every=STEPS",
    "save_first_step": "",
    "eval_strategy": "~evaluations are counted in steps  Set training.evaluate_every=STEPS",
    "auto_resume_from_checkpoints": "",
    "resume_from_checkpoint": "checkpoints of other tools cannot be gone on with",
    "quantize_moe_experts": "",
    "use_kernels": "",
    "debug": "",
    "early_stopping_patience": "~patience is counted in evaluations  Set training.early_stop_patience",
    "torchdistx_path": "",
    "local_rank": "",
    "world_size": "",
    "tokenizer_use_fast": "",
    "tokenizer_legacy": "",
    "device_map": "",
    "low_cpu_mem_usage": "",
    "experimental_skip_move_to_device": "",
    "accelerator_config": "",
    "use_wandb": "",
    **dict.fromkeys(
        ("wandb_entity", "wandb_watch", "wandb_name", "wandb_run_id", "wandb_log_model", "wandb_mode",
         "mlflow_tracking_uri", "mlflow_run_name", "hub_model_id", "profiler_steps", "use_ray",
         "generate_samples"),
        "",
    ),
}  # fmt: skip
_OTHERS = """
    base_model revision_of_model adapter load_in_4bit load_in_8bit gptq lora_r lora_alpha lora_dropout
    lora_target_linear lora_target_modules lora_modules_to_save lora_model_dir sequence_len
    sample_packing datasets test_datasets pretraining_dataset val_set_size micro_batch_size
    gradient_accumulation_steps batch_size num_epochs max_steps warmup_steps warmup_ratio optimizer
    lr_scheduler learning_rate weight_decay max_grad_norm bf16 fp16 gradient_checkpointing
    flash_attention sdp_attention eager_attention attn_implementation train_on_inputs group_by_length
    chat_template deepspeed seed plugins logging_steps save_steps save_total_limit eval_steps
    evals_per_epoch wandb_project qat use_scattermoe use_sonicmoe experts_implementation
    llama4_linearized_experts model_config fused_attn_kernel liger_rms_norm_gated expert_parallel_size
    eta_min tokenizer_use_mistral_common model_quantization_config lr_quadratic_warmup
    flex_attn_compile_kwargs relora_prune_ratio fp8 llmcompressor context_parallel_size use_tensorboard
"""
KNOWN = (*_OTHERS.split(), *LIGER)
"""Other keys of axolotl, for a closest name."""
