import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** A writer on Apache Kafka's client with default settings: see bench/leader_kill.py. */
public class Writer {
    private static final long EVERY_MS = 20;

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0]);
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            while (true) {
                producer.send(new ProducerRecord<>(arguments[1], "x"), (stored, problem) -> {
                    if (problem != null) {
                        System.err.println(problem);
                        return;
                    }
                    java.time.Instant now = java.time.Instant.now();
                    System.out.printf("%d.%06d%n", now.getEpochSecond(), now.getNano() / 1000);
                });
                Thread.sleep(EVERY_MS);
            }
        }
    }
}
