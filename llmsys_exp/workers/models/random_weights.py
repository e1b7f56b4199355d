"""Models of a real shape with random weights, the same on every rank and at every ZeRO stage."""

from __future__ import annotations

from typing import Any

from llmsys_exp.workers.job import Job
from llmsys_exp.workers.models.shape import model_shape


def random_model(job: Job, *, device: Any, **arguments: Any) -> Any:
    """Build the model with weights drawn on the device from the job's seed.

    Under ZeRO-3 transformers draws them on rank 0, module by module after building; below, the same order is
    kept. The weights thus depend on the seed and the kind of device alone.
    """
    import torch
    from transformers import AutoModelForCausalLM, initialization
    from transformers.integrations import is_deepspeed_zero3_enabled

    shape = model_shape(job)
    arguments["trust_remote_code"] = job.config.model.trust_remote_code
    torch.manual_seed(job.config.seed)
    if is_deepspeed_zero3_enabled():
        model = AutoModelForCausalLM.from_config(shape, **arguments)
    else:
        with torch.device(device), initialization.no_init_weights():
            model = AutoModelForCausalLM.from_config(shape, **arguments)
        model.initialize_weights()
        model.tie_weights()
    torch.manual_seed(job.config.seed)  # rank 0 has drawn more numbers than the others
    return model
