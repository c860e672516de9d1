"""The report as one page of HTML that opens from disk and asks nobody for anything."""
