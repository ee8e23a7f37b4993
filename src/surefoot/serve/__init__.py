"""A bundle behind HTTP: images in, calibrated answers out. Needs the extra `serve`."""
