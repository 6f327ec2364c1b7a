"""Rows in, shards out."""
