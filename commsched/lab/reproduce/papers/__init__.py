"""One file per paper: its published numbers and how the library predicts them."""
