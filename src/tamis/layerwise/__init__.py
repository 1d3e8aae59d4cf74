"""Layer by layer over calibration data: what quantization, repair and pruning with weight updates share."""
