"""Training data that come with other packages: one file per source."""
