"""The engine that executes a rank's programs: streams, threads, buckets and exchanges."""
