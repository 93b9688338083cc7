"""Shared parts of the benchmarks: environment of a run, contestants in processes of their own, medians, raw JSON."""
