"""A demo of the main job on real data: ``python -m tidemill.pipeline.demo``, run by ``make run``."""
