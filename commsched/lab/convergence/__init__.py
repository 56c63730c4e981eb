"""The convergence study of strategies and codecs: cases, trainings, step times and the table."""
