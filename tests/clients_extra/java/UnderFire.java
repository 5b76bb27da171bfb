import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.IntegerDeserializer;
import org.apache.kafka.common.serialization.IntegerSerializer;

/**
 * An idempotent producer writes numbers until a line comes in, and a group of two reads them meanwhile:
 * `UnderFire BOOTSTRAP TOPIC PARTITIONS GROUP`.
 */
public class UnderFire {
    private static final Set<Integer> READ = ConcurrentHashMap.newKeySet();
    private static final AtomicInteger READS = new AtomicInteger();
    private static final AtomicInteger COMMITS = new AtomicInteger();
    private static final AtomicBoolean DONE = new AtomicBoolean();
    private static final AtomicBoolean ENOUGH = new AtomicBoolean();

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]);
        List<Thread> members = new ArrayList<>();
        for (int number = 0; number < 2; number++) {
            Thread member = new Thread(() -> read(arguments[0], topic, arguments[3]));
            member.start();
            members.add(member);
        }
        Thread told = new Thread(() -> {
            try {
                System.in.read();
            } catch (java.io.IOException problem) {
                problem.printStackTrace();
            }
            ENOUGH.set(true);
        });
        told.setDaemon(true);
        told.start();
        int sent = write(arguments[0], topic, partitions);
        for (int round = 0; round < 600 && READ.size() < sent; round++) {
            Thread.sleep(100);
        }
        DONE.set(true);
        for (Thread member : members) {
            member.join();
        }
        System.out.println("read " + READ.size() + " " + READS.get() + " " + COMMITS.get());
    }

    private static int write(String bootstrap, String topic, int partitions) throws Exception {
        AtomicInteger acknowledged = new AtomicInteger();
        int sent = 0;
        try (KafkaProducer<Integer, Integer> producer = new KafkaProducer<>(
                Map.of("bootstrap.servers", bootstrap, "enable.idempotence", true, "acks", "all"),
                new IntegerSerializer(), new IntegerSerializer())) {
            for (; !ENOUGH.get(); sent++) {
                producer.send(new ProducerRecord<>(topic, sent % partitions, null, sent), (metadata, problem) -> {
                    if (problem != null) {
                        System.out.println("error " + problem);
                    } else if (acknowledged.incrementAndGet() % 200 == 0) {
                        System.out.println("acknowledged " + acknowledged.get());
                    }
                });
                Thread.sleep(1);
            }
        }
        System.out.println("sent " + sent + " " + acknowledged.get());
        return sent;
    }

    private static void read(String bootstrap, String topic, String group) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "group.id", group,
            "auto.offset.reset", "earliest", "enable.auto.commit", false, "session.timeout.ms", 10000);
        try (KafkaConsumer<Integer, Integer> consumer = new KafkaConsumer<>(settings, new IntegerDeserializer(),
                new IntegerDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (!DONE.get()) {
                boolean any = false;
                for (ConsumerRecord<Integer, Integer> one : consumer.poll(Duration.ofMillis(200))) {
                    READ.add(one.value());
                    READS.incrementAndGet();
                    any = true;
                }
                if (any) {
                    try {
                        consumer.commitSync();
                        COMMITS.incrementAndGet();
                    } catch (CommitFailedException problem) {
                        System.out.println("rebalanced " + problem.getMessage());
                    }
                }
            }
        } catch (KafkaException problem) {
            System.out.println("error " + problem);
        }
    }
}
