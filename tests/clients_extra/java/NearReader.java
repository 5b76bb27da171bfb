import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads a partition from a rack, and prints what came from which broker: `NearReader BOOTSTRAP TOPIC RACK COUNT`. */
public class NearReader {
    public static void main(String[] arguments) {
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0], "client.rack", arguments[2],
            "max.partition.fetch.bytes", 100_000, "fetch.max.bytes", 100_000);
        int left = Integer.parseInt(arguments[3]);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(),
                new ByteArrayDeserializer())) {
            TopicPartition partition = new TopicPartition(arguments[1], 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            while (left > 0) {
                left -= consumer.poll(Duration.ofSeconds(5)).count();
            }
            consumer.metrics().forEach((name, metric) -> {
                if (name.name().equals("incoming-byte-total") && name.tags().containsKey("node-id")) {
                    System.out.println(name.tags().get("node-id") + " "
                        + Math.round((Double) metric.metricValue()));
                }
            });
        }
    }
}
