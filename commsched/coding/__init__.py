"""Building blocks of codecs: packets, parameters, selections, error feedback, and the registry."""
