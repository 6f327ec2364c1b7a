"""Institutions that do not pool their rows: site agents, policies, secure sums, privacy."""
