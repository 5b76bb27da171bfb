"""Jobs on top of the Spark source: topics to Parquet, data to topics."""
