"""Measuring search and Step 4 on judged sets."""
