"""Sections 5.2 to 5.4 and 6.1 of the paper: schedule, loss, checkpoint averaging and the trainer."""
