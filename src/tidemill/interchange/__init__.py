"""Data directories between Apache Kafka and Tidemill: what each keeps beside the logs, read and written."""
