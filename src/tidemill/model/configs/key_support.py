"""Whether a key takes effect; otherwise the reason why not."""

from __future__ import annotations

YES = ""
"""The key takes effect. Any other text is the reason why it does not."""

# Features that are planned for a later version.
_LATER = "comes with a later version: "
BETWEEN_BROKERS = _LATER + "TLS and SASL between brokers; they use PLAINTEXT"
SECURITY = _LATER + "TLS, SASL and access lists"
KERBEROS = _LATER + "SASL with Kerberos"
OAUTH = _LATER + "SASL with OAuth tokens"
TOKENS = _LATER + "delegation tokens"
QUOTAS = _LATER + "quotas and traffic shares"
CONSUMER_PROTOCOL = _LATER + "the consumer group protocol of KIP-848; the classic one is served"
PROVIDERS = _LATER + "placeholders in values; they are used literally"

# Features that have no place in this implementation.
LOOP = "no effect: one event loop does this work; there is no thread pool"
CLEANERS = "no effect: one process beside the broker compacts one log at a time"
NEWEST_STATE = "no effect: only the newest state of each partition is queued for a broker"
ONE_SETUP = "no effect: a failed connection is retried after a fixed pause"
SYSTEM_BUFFER = "no effect: the system sizes the buffers of connections between brokers"
SERIAL = "no effect: requests are handled as they are read, without a queue between threads"
JAVA = "no effect: it configures the Java runtime or names a Java class"
KRAFT = "no effect: metadata is kept in the coordination store, not in a KRaft quorum"
REMOTE = "no effect: there is no tiered storage"
SHARE = "no effect: share groups are not served"
STREAMS = "no effect: streams groups are not served"
TELEMETRY = "no effect: client metrics are not collected"
STABLE = "no effect: unstable versions and keys are not served"
EACH_PIECE = "no effect: the rate of moves is enforced for every 1 MB, not over samples"
LAG_TIME = "no effect: a follower's lag is measured in time, by replica.lag.time.max.ms"
PURGE = "no effect: a completed request is removed at once"
COUNTERS = "no effect: metrics are plain counters; their reader computes rates"
ALL_ACKS = "no effect: an offset commit always waits for every in-sync replica"
PREALLOCATION = "no effect: appends are sequential, and file systems use delayed allocation for them"
UNCOMPRESSED = "no effect: offset commits are stored uncompressed"
OWN_PIECES = "no effect: offsets and transactions are loaded in chunks of a fixed size"
WITH_RETENTION = (
    "no effect: producers are checked together with retention, every log.retention.check.interval.ms"
)
