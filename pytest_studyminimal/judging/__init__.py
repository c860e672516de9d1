"""What an answer is compared with; only this room reads the answer key."""
