"""How arrays reach MPI: from the host, staged from a device, by pointers, or through NCCL."""
