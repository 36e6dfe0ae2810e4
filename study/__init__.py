"""Trains networks under every normalisation variant and measures what each explanation of BN predicts."""
