import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Transactions of the Java client, `Transactions BOOTSTRAP TOPIC GROUP`: one line for each result, the same with
 * every broker. The topic has two partitions.
 */
public class Transactions {
    private static final Duration WAIT = Duration.ofSeconds(20);
    private static String bootstrap;
    private static String topic;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        topic = arguments[1];
        String group = arguments[2];
        committedAndAborted();
        offsets(group);
        fenced();
        timedOut();
        read("read_committed");
        read("read_uncommitted");
    }

    private static KafkaProducer<String, String> producer(String name, int timeoutMs) {
        KafkaProducer<String, String> made = new KafkaProducer<>(
            Map.of("bootstrap.servers", bootstrap, "transactional.id", topic + name, "transaction.timeout.ms", timeoutMs),
            new StringSerializer(), new StringSerializer());
        made.initTransactions();
        return made;
    }

    private static void send(KafkaProducer<String, String> producer, String value) throws Exception {
        for (int partition = 0; partition < 2; partition++) {
            producer.send(new ProducerRecord<>(topic, partition, null, value)).get();
        }
    }

    private static void committedAndAborted() throws Exception {
        try (KafkaProducer<String, String> producer = producer("-first", 60_000)) {
            for (int number = 0; number < 6; number++) {
                producer.beginTransaction();
                send(producer, (number % 3 == 1 ? "aborted " : "committed ") + number);
                if (number % 3 == 1) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
            producer.beginTransaction();
            producer.commitTransaction();
            producer.beginTransaction();
            producer.abortTransaction();
            System.out.println("empty transactions end");
        }
    }

    private static void offsets(String group) throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> producer = producer("-offsets", 60_000);
             KafkaConsumer<String, String> consumer = consumer("read_committed", group);
             Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            consumer.subscribe(List.of(topic));
            while (consumer.poll(Duration.ofMillis(200)).isEmpty()) {
            }
            for (long offset : new long[] {3, 5}) {
                producer.beginTransaction();
                producer.sendOffsetsToTransaction(
                    Map.of(partition, new OffsetAndMetadata(offset, "position")), consumer.groupMetadata());
                if (offset == 3) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
                System.out.println("offset " + admin.listConsumerGroupOffsets(group)
                    .partitionsToOffsetAndMetadata().get().get(partition).offset());
            }
            producer.beginTransaction();
            producer.sendOffsetsToTransaction(
                Map.of(partition, new OffsetAndMetadata(7)),
                new org.apache.kafka.clients.consumer.ConsumerGroupMetadata(
                    group, 1000, "unknown", java.util.Optional.empty()));
            producer.commitTransaction();
        } catch (KafkaException problem) {
            System.out.println("a former member: " + name(problem));
        }
    }

    private static void fenced() throws Exception {
        KafkaProducer<String, String> first = producer("-fenced", 60_000);
        first.beginTransaction();
        send(first, "aborted by a second instance");
        try (KafkaProducer<String, String> second = producer("-fenced", 60_000)) {
            second.beginTransaction();
            send(second, "committed by the second instance");
            second.commitTransaction();
        }
        try {
            first.send(new ProducerRecord<>(topic, 0, null, "zombie"));
            first.commitTransaction();
            System.out.println("the zombie commits");
        } catch (KafkaException problem) {
            System.out.println("the zombie's commit: " + name(problem));
        }
        try {
            first.abortTransaction();
            first.beginTransaction();
            System.out.println("the zombie goes on");
        } catch (KafkaException problem) {
            System.out.println("the zombie's next call: " + name(problem));
        }
        first.close(Duration.ZERO);
    }

    private static void timedOut() throws Exception {
        KafkaProducer<String, String> slow = producer("-slow", 1_000);
        slow.beginTransaction();
        send(slow, "aborted by its timeout");
        long began = System.nanoTime();
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            while (!admin.describeTransactions(Set.of(topic + "-slow")).description(topic + "-slow").get()
                .state().toString().equals("CompleteAbort")) {
                Thread.sleep(100);
                if (System.nanoTime() - began > 60_000_000_000L) {
                    throw new IllegalStateException("the transaction does not time out");
                }
            }
        }
        try {
            send(slow, "late");
            slow.commitTransaction();
            System.out.println("a late commit succeeds");
        } catch (Exception problem) {
            System.out.println("a late commit fails");
        }
        slow.close(Duration.ZERO);
    }

    private static KafkaConsumer<String, String> consumer(String isolation, String group) {
        return new KafkaConsumer<>(
            Map.of("bootstrap.servers", bootstrap, "group.id", group, "isolation.level", isolation,
                "auto.offset.reset", "earliest", "enable.auto.commit", false),
            new StringDeserializer(), new StringDeserializer());
    }

    private static void read(String isolation) {
        try (KafkaConsumer<String, String> consumer = consumer(isolation, "unused")) {
            List<TopicPartition> partitions = List.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions, WAIT);
            Map<Integer, List<String>> found = Map.of(0, new ArrayList<>(), 1, new ArrayList<>());
            while (partitions.stream().anyMatch(one -> consumer.position(one) < ends.get(one))) {
                for (ConsumerRecord<String, String> one : consumer.poll(Duration.ofMillis(200))) {
                    found.get(one.partition()).add(one.offset() + " " + one.value());
                }
            }
            for (int partition = 0; partition < 2; partition++) {
                System.out.println(isolation + " " + partition + ": " + found.get(partition));
            }
        }
    }

    private static String name(Throwable problem) {
        return problem.getClass().getSimpleName();
    }
}
