"""Producer, consumer and admin."""
