"""The training jobs, which run anywhere `torchrun` does: corpus, model, optimizers, training and prediction of BERT.

Nothing here imports `orchestrator`. `orchestrator` imports `train_jobs.config` and `train_jobs.artifacts`, which do not
need torch.
"""
