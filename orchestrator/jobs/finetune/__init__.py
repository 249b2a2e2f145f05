"""Fine-tuning: its spec, plan and estimate."""
