"""Spark jobs: load topics into Parquet, publish data to topics."""
