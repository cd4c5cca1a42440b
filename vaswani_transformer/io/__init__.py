"""What is read and written: files, locks and JSON, and text on a terminal."""
