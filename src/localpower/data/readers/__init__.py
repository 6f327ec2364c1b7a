"""One file for each format: generators of blocks of rows."""
