"""Training jobs that run anywhere `torchrun` does: pretraining of BERT, its corpus, its model and its optimizers.

Nothing here imports `orchestrator`; `train_jobs.config` needs no torch and is shared with it.
"""
