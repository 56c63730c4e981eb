"""Data to train on that come with other packages: one file per source."""
