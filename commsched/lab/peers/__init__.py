"""Real PyTorch training: our plans against DistributedDataParallel, in turns in one job."""
