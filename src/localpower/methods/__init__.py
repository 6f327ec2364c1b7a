"""The methods, and what they share."""
