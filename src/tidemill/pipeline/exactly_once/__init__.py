"""Writes each batch of a Spark query once into Kafka: all rows or none, also after failures and retries.

Tasks write their rows in transactions that stay open. The driver stores in a control topic which transactions
form the batch, and only then commits them. The order of the records in the control topic decides between
attempts, so that neither a former driver nor a former task can add a row.

==================  ================================================================================
module              content
==================  ================================================================================
control_records     the records of the control topic, their keys and values
compacted_records   the records of a query as compaction leaves them, to continue reading
batch_state         what the records of one batch mean: which attempt is valid, which is superseded
requests            the requests of the protocol to the cluster, and their results
protocol            the steps of task, commit and abort, as generators of requests
row_checksum        row count and checksum of a task, independent of the order of its rows
control_topic       the control topic on the target cluster: creates, appends and reads it
transactional_ids   which transactional id a task uses
missing_rights      adds the right that is missing to authorization errors
task_transaction    writes the rows of a task into a transaction
sink_cluster        executes the requests of the protocol
writers             Spark's writers
==================  ================================================================================
"""
