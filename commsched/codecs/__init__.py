"""Codecs: one file per codec, or per family of codecs. Their machinery is in `coding`."""
