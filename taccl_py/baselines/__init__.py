"""Baselines: what people have without us: NCCL's algorithms as schedules, and the rule by which NCCL chooses among them."""
