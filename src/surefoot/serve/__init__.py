"""A bundle behind HTTP. Needs the extra `serve`."""
