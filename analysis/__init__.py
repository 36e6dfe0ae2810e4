"""From records to frames, figures and the report. Imports no torch."""
