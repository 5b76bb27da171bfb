"""Message formats: batches, records, compression, columns."""
