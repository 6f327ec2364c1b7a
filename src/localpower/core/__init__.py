"""The mathematics: numpy and scipy only, no engine, no file format."""
