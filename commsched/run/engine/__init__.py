"""Executes a rank's programs: streams, threads, buckets and exchanges."""
