"""The training jobs, which run anywhere `torchrun` does: corpus, model, optimizers, training and prediction of BERT.

Nothing here imports `orchestrator`. `orchestrator` imports `train_jobs.config` and `train_jobs.artifacts`, which do not
need torch.
"""

import os

# Packed batches differ in their number of tokens, so without this the allocator's blocks fragment, and memory runs out
# early on GPUs of 16 to 40 GB. torch reads the variable when it is imported, and this package is imported before.
# `engine.runtime.gpu_check` takes it back where the GPU does not support it.
ALLOCATOR_VARIABLE, EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"
if "PYTORCH_ALLOC_CONF" not in os.environ:
    os.environ.setdefault(ALLOCATOR_VARIABLE, EXPANDABLE)
