"""Prefill and decode of one model folder by several runtimes, same prompt ids, alternated in one run."""
