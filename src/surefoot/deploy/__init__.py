"""From a model to its use: a calibrated module, a bundle on disk, predictions of images, exported graphs."""
