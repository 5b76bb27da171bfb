import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.IntegerSerializer;

/**
 * Writes numbers until a line comes in, and tries none again: `TriedOnce BOOTSTRAP TOPIC PARTITIONS`. It hears
 * of each error that a broker answers, and says which of them are not for trying again.
 */
public class TriedOnce {
    public static void main(String[] arguments) throws Exception {
        int partitions = Integer.parseInt(arguments[2]);
        AtomicBoolean enough = new AtomicBoolean();
        Thread told = new Thread(() -> {
            try {
                System.in.read();
            } catch (java.io.IOException problem) {
                problem.printStackTrace();
            }
            enough.set(true);
        });
        told.setDaemon(true);
        told.start();
        AtomicInteger acknowledged = new AtomicInteger();
        AtomicInteger retriable = new AtomicInteger();
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0], "enable.idempotence", false,
            "acks", "all", "retries", 0, "request.timeout.ms", 10000, "delivery.timeout.ms", 20000);
        try (KafkaProducer<Integer, Integer> producer = new KafkaProducer<>(settings, new IntegerSerializer(),
                new IntegerSerializer())) {
            for (int number = 0; !enough.get(); number++) {
                producer.send(new ProducerRecord<>(arguments[1], number % partitions, null, number),
                    (metadata, problem) -> {
                        if (problem == null) {
                            if (acknowledged.incrementAndGet() % 200 == 0) {
                                System.out.println("acknowledged " + acknowledged.get());
                            }
                        } else if (problem instanceof RetriableException || problem instanceof TimeoutException) {
                            retriable.incrementAndGet();
                        } else {
                            System.out.println("error " + problem);
                        }
                    });
                Thread.sleep(1);
            }
        }
        System.out.println("sent " + acknowledged.get() + " " + retriable.get());
    }
}
