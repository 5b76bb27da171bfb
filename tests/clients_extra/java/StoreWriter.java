import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import kafka.admin.RackAwareMode;
import kafka.controller.ReplicaAssignment;
import kafka.zk.AdminZkClient;
import kafka.zk.KafkaZkClient;
import org.apache.kafka.admin.BrokerMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.Time;
import org.apache.zookeeper.client.ZKClientConfig;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/** Kafka 3.9's own classes write to ZooKeeper what its tools wrote there: `StoreWriter ADDRESS WHAT ARGUMENT...`. */
public class StoreWriter {
    public static void main(String[] arguments) throws Exception {
        KafkaZkClient store = KafkaZkClient.apply(arguments[0], false, 30000, 30000, 10, Time.SYSTEM, "test",
            new ZKClientConfig(), "kafka.server", "SessionExpireListener", false, false);
        try {
            act(store, new AdminZkClient(store, Option.empty()), arguments);
        } finally {
            store.close();
        }
    }

    private static void act(KafkaZkClient store, AdminZkClient admin, String[] arguments) throws Exception {
        String name = arguments[2];
        switch (arguments[1]) {
            case "create-topic" -> admin.createTopic(name, Integer.parseInt(arguments[3]),
                Integer.parseInt(arguments[4]), properties(arguments, 5), RackAwareMode.Safe$.MODULE$, true);
            case "add-partitions" -> addPartitions(store, admin, name, Integer.parseInt(arguments[3]));
            case "delete-topic" -> admin.deleteTopic(name);
            case "topic-config" -> admin.changeTopicConfig(name, properties(arguments, 3));
            case "broker-config" -> admin.changeBrokerConfig(
                name.isEmpty() ? Option.empty() : Option.apply(Integer.parseInt(name)), properties(arguments, 3));
            case "reassign" -> store.createPartitionReassignment(CollectionConverters.asScala(
                Map.of(new TopicPartition(name, Integer.parseInt(arguments[3])), numbers(arguments, 4))));
            case "elect" -> {
                List<TopicPartition> one = List.of(new TopicPartition(name, Integer.parseInt(arguments[3])));
                store.createPreferredReplicaElection(CollectionConverters.asScala(one).toSet());
            }
            case "states" -> {
                List<TopicPartition> asked = new ArrayList<>();
                for (String number : name.split(",")) {
                    asked.add(new TopicPartition(arguments[3], Integer.parseInt(number)));
                }
                System.out.println(store.getTopicPartitionStates(CollectionConverters.asScala(asked).toSeq()));
                System.out.println(store.getAllBrokersInCluster());
                System.out.println(store.getControllerId());
            }
            default -> throw new IllegalArgumentException(arguments[1]);
        }
    }

    private static Properties properties(String[] arguments, int first) {
        Properties found = new Properties();
        for (int at = first; at < arguments.length; at++) {
            String[] pair = arguments[at].split("=", 2);
            found.setProperty(pair[0], pair[1]);
        }
        return found;
    }

    private static scala.collection.Seq<Object> numbers(String[] arguments, int first) {
        List<Object> found = new ArrayList<>();
        for (int at = first; at < arguments.length; at++) {
            found.add(Integer.parseInt(arguments[at]));
        }
        return CollectionConverters.asScala(found).toSeq();
    }

    private static void addPartitions(KafkaZkClient store, AdminZkClient admin, String topic, int count) {
        Map<Object, ReplicaAssignment> there = new HashMap<>();
        List<String> asked = List.of(topic);
        CollectionConverters.asJava(store.getFullReplicaAssignmentForTopics(CollectionConverters.asScala(asked).toSet()))
            .forEach((partition, replicas) -> there.put(partition.partition(), replicas));
        List<BrokerMetadata> brokers = new ArrayList<>();
        CollectionConverters.asJava(store.getAllBrokersInCluster())
            .forEach(one -> brokers.add(new BrokerMetadata(one.id(), Optional.empty())));
        admin.addPartitions(topic, CollectionConverters.asScala(there), CollectionConverters.asScala(brokers), count,
            Option.empty(), false);
    }
}
