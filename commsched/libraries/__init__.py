"""Communication libraries: one file per library. It says which algorithm `native` is, and when."""
