"""What strategies and codecs learn: cases, trainings, step times and the table."""
