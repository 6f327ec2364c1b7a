"""Where shards live: one file per engine, its library imported on use."""
