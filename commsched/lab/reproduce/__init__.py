"""Published numbers against the library's."""
