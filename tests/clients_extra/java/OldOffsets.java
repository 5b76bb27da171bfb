import java.util.Collections;
import java.util.Map;
import kafka.common.OffsetAndMetadata;
import kafka.common.OffsetMetadataAndError;
import kafka.common.TopicAndPartition;
import kafka.javaapi.OffsetCommitRequest;
import kafka.javaapi.OffsetFetchRequest;
import kafka.javaapi.consumer.SimpleConsumer;

/**
 * Offsets of version 0 through the simple consumer of Kafka 0.8.2: HOST PORT GROUP TOPIC PARTITION [OFFSET] commits
 * the offset where one is given, then prints what the broker has, and its error code.
 */
public class OldOffsets {
    private static final short VERSION = 0;

    public static void main(String[] arguments) {
        SimpleConsumer consumer =
            new SimpleConsumer(arguments[0], Integer.parseInt(arguments[1]), 20_000, 65_536, "old");
        TopicAndPartition partition = new TopicAndPartition(arguments[3], Integer.parseInt(arguments[4]));
        if (arguments.length > 5) {
            OffsetAndMetadata offset = new OffsetAndMetadata(Long.parseLong(arguments[5]), "", -1L);
            Map<?, ?> errors = consumer.commitOffsets(new OffsetCommitRequest(
                arguments[2], Collections.singletonMap(partition, offset), 1, "old", VERSION)).errors();
            if (!errors.get(partition).equals((short) 0)) {
                throw new IllegalStateException("refused: " + errors);
            }
        }
        OffsetMetadataAndError found = consumer.fetchOffsets(new OffsetFetchRequest(
            arguments[2], Collections.singletonList(partition), VERSION, 2, "old")).offsets().get(partition);
        System.out.println(found.offset() + " " + found.error());
        consumer.close();
    }
}
