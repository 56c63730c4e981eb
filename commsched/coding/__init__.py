"""What codecs are made of: packets, parameters, selections, error feedback, and the registry."""
