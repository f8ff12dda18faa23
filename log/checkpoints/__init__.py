"""Small files beside the segments: offsets, leader epochs, producers."""
