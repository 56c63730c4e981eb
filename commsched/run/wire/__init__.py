"""The paths of arrays to MPI: from the host, staged from a device, by pointers, or through NCCL."""
