"""Data of pictures: classification, segmentation and super-resolution, embedded or of one's own."""
