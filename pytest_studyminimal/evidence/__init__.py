"""What may be spent and what happened: the ledger, the budget on top of it, and the series."""
