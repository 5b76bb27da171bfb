"""``tidemill pipeline mirror``: copies topics of other clusters, with their offsets or as new records.

One streaming query copies each source cluster. With the same offsets (:mod:`.copy_source`), its driver
process creates topics (:mod:`.topic_sync`) and plans ranges (:mod:`.copy_planning`), and its tasks copy the
batches (:mod:`.range_copy`). The log ends of the target are the position of the mirror, so that a repeated
task copies nothing twice. With new offsets, the query (:mod:`.record_query`) reads committed records
(:mod:`.record_source`, :mod:`.record_planning`) and writes them with the exactly-once sink.

The process of the job copies the positions of groups (:mod:`.group_sync`), which are translated for new
offsets (:mod:`.sync_points`, :mod:`.position_translation`), and measures the lag (:mod:`.mirror_lag`).
"""
