"""What runs where rows are: shards, their products, and everything that they can be asked."""
