"""Real PyTorch training: our plans and DistributedDataParallel take turns in one job."""
