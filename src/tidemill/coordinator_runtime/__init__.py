"""What the group coordinator and the transaction coordinator share: partitions of an internal topic, loaded
into state machines, whose records are appended and replayed."""
