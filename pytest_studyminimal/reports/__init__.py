"""What a ledger says, for people: derived from the records alone, so that a crash reports the same."""
